"""Proofs that a case cannot differ between base and head, and need not be measured."""
