"""The systems that lapse is compared with, each as a contestant."""
