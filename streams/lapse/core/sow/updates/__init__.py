"""Updates: what changes stored records, at once, as a delta, or at an instant."""
