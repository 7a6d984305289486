"""Payloads: conversion between objects and bytes."""
