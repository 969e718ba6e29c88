//! Integration tests, in one program.

mod allocation;
mod capture;
