"""What a CI system runs; `.github/workflows` call it and hold no logic."""
