"""Recorded results: asv's files and session sidecars read into one queryable dataset."""
