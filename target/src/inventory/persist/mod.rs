//! State that is kept across restarts, in files of the state folder (`state_dir`).

pub(crate) mod nsid;
pub(crate) mod protection;
pub(crate) mod state_file;
