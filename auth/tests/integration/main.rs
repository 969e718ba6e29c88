//! Both sides of the authentication: responses, transactions, and worlds with a hostile network.

mod driver;
mod failures;
mod redaction;
mod responses;
mod transactions;
mod world;
mod worlds;
