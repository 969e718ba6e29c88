//! Integration tests, in one program.

mod damage;
mod fixture;
mod formats;
