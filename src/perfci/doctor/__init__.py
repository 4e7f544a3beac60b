"""Layer 3: `perfci doctor`. Each check turns a Machine into Findings, bounded in time, and never raises."""
