"""Proofs that a case cannot differ between base and head, so that it need not be measured."""
