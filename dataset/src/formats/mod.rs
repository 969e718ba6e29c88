//! Formats that training data comes in: where their samples lie.
