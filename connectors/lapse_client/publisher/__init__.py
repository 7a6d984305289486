"""Publishing records with lifetimes."""
