//! The commands of `feedrail`, and the documents, whose commands are run as written.

mod demo;
mod documents;
mod interrupt;
mod packages;
mod perf;
mod read;
mod serve;
mod status_page;
mod top;
mod write;
