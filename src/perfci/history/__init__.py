"""The history: comparisons of main, night by night, as ratios measured side by side."""
