"""The history: comparisons of main, night by night, kept as ratios that were measured side by side."""
