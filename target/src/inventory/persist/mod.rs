//! What is kept across restarts in files of the state folder.

pub mod nsid;
pub mod protection;
pub mod state_file;
