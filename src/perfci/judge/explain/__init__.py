"""Why something moved: sentences from what profilers saw."""
