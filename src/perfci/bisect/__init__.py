"""Find the commit that changed a metric."""
