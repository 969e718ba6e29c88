//! Memory budget of memory namespaces: what the process can still allocate by the limits of the
//! machine and its control groups, checked periodically, less the chunks allocated since the check.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use super::cache_room;

/// Share of the available memory at the first check that namespaces never take: 1/8. Without it, a
/// machine without swap has no page cache left when namespaces are full.
const KEPT_PART: u64 = 8;

static OF_PROCESS: LazyLock<Arc<MemoryRoom>> = LazyLock::new(|| Arc::new(MemoryRoom::of(u64::MAX)));

/// Bytes that the memory namespaces of the process may still allocate. All cores take from it.
#[derive(Debug)]
pub(crate) struct MemoryRoom {
    left_bytes: AtomicU64,
    /// Bytes kept back from namespaces, set by the first check.
    kept_bytes: OnceLock<u64>,
}

impl MemoryRoom {
    /// Budget of this process; unlimited before the first check.
    pub(crate) fn of_process() -> &'static Arc<Self> {
        &OF_PROCESS
    }

    /// Creates a budget of `left_bytes`, which the next check replaces.
    pub(super) fn of(left_bytes: u64) -> Self {
        Self { left_bytes: AtomicU64::new(left_bytes), kept_bytes: OnceLock::new() }
    }

    /// Checks the available memory and returns the bytes that namespaces may take. Reads files of
    /// procfs and cgroupfs, so only the control path calls this.
    pub(super) fn look(&self) -> u64 {
        if let Some(available) = cache_room::available_to_process() {
            self.set_available(available);
        }
        self.left_bytes.load(Ordering::Relaxed)
    }

    /// Reads again how much memory is available. Does nothing before the first memory namespace is
    /// opened.
    pub(crate) fn look_again(&self) {
        if self.kept_bytes.get().is_some() {
            self.look();
        }
    }

    fn set_available(&self, available_bytes: u64) {
        let kept = *self.kept_bytes.get_or_init(|| available_bytes / KEPT_PART);
        self.left_bytes.store(available_bytes.saturating_sub(kept), Ordering::Relaxed);
    }

    /// Takes `bytes` from the budget; false if there are not enough left.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let order = Ordering::Relaxed;
        self.left_bytes.fetch_update(order, order, |left| left.checked_sub(bytes)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_memory_is_kept() {
        let room = MemoryRoom::of(u64::MAX);
        assert!(room.take(1 << 50), "nobody has looked");
        room.set_available(800);
        assert!(room.take(700) && !room.take(1));
        room.set_available(150);
        assert!(room.take(50) && !room.take(1));
        room.set_available(50);
        assert!(!room.take(1));
        room.set_available(900);
        assert!(room.take(800), "namespaces were removed");
    }
}
