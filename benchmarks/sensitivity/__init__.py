"""Compares how well perfci and other gates find slow-downs, and how often they raise false alarms: see README.md."""
