"""Calibration: trials of unchanged code show the smallest changes that later runs can prove here."""
