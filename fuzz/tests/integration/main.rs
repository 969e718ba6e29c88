//! Integration tests, in one program.

mod corpus;
mod descriptors;
