"""Calibration: trials of unchanged code show the smallest changes that later runs can prove on this machine."""
