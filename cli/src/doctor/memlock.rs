//! Checks the limit of locked memory (RLIMIT_MEMLOCK), against which registered memory counts.

use super::finding::{Advice, DoctorFinding, FindingId};
use super::tree::SystemTree;
use crate::size::human;

/// Enough for a target's pool (64 MiB by default) and the batches of a data loader.
const WANTED_BYTES: u64 = 256 << 20;
/// Number of `CAP_IPC_LOCK`, a capability that lifts the limit.
const CAP_IPC_LOCK: u32 = 14;

/// Whether this process has a capability in its effective set.
pub(crate) fn has_capability(tree: &SystemTree, number: u32) -> bool {
    let status = tree.text("proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    set.is_some_and(|set| set & 1 << number != 0)
}

/// Returns a finding if the limit is low enough for memory registrations to fail.
pub(crate) fn examine(tree: &SystemTree) -> Option<DoctorFinding> {
    let limits = tree.text("proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    // The soft limit; `unlimited` does not parse as a number.
    let bytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    if bytes >= WANTED_BYTES || has_capability(tree, CAP_IPC_LOCK) {
        return None;
    }
    Some(DoctorFinding {
        id: FindingId::Memlock,
        subject: "RLIMIT_MEMLOCK".to_owned(),
        what: format!("{} of memory may be locked", human(bytes)),
        why: format!(
            "RDMA devices register memory, which locks it: a target with the default pool, or a data loader with {} in flight, is refused with ENOMEM.",
            human(WANTED_BYTES)
        ),
        advice: Advice::mend(
            "ulimit -l unlimited  # this shell, as root; for services LimitMEMLOCK=infinity, for users /etc/security/limits.conf",
        ),
    })
}
