//! The memory that namespaces in memory may still take: what the process may have, by the machine
//! and its control groups, looked at now and then, and less what they took since.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use super::cache_room;

/// This part of the memory that there was at first is kept for the rest of the process and of the
/// machine. With a smaller one, a machine without swap has no page cache left when namespaces are
/// full; not measured.
const KEPT_PART: u64 = 8;

static OF_PROCESS: LazyLock<Arc<MemoryRoom>> = LazyLock::new(|| Arc::new(MemoryRoom::of(u64::MAX)));

/// A bound of the memory that namespaces take. All cores take from it.
#[derive(Debug)]
pub(crate) struct MemoryRoom {
    left_bytes: AtomicU64,
    /// Not given to namespaces; known after the first look.
    kept_bytes: OnceLock<u64>,
}

impl MemoryRoom {
    /// That of this process, without a bound before the first look.
    pub(crate) fn of_process() -> &'static Arc<Self> {
        &OF_PROCESS
    }

    /// So much, until the next look.
    pub(super) fn of(left_bytes: u64) -> Self {
        Self { left_bytes: AtomicU64::new(left_bytes), kept_bytes: OnceLock::new() }
    }

    /// Looks at the memory that is there, and returns what namespaces may take of it. Reads files
    /// of the kernel, so only the control path does.
    pub(super) fn look(&self) -> u64 {
        if let Some(available) = cache_room::available_to_process() {
            self.found(available);
        }
        self.left_bytes.load(Ordering::Relaxed)
    }

    /// Looks again, if namespaces in memory were ever opened.
    pub(crate) fn look_again(&self) {
        if self.kept_bytes.get().is_some() {
            self.look();
        }
    }

    fn found(&self, available_bytes: u64) {
        let kept = *self.kept_bytes.get_or_init(|| available_bytes / KEPT_PART);
        self.left_bytes.store(available_bytes.saturating_sub(kept), Ordering::Relaxed);
    }

    /// Takes memory; false if there is not as much.
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
        room.found(800);
        assert!(room.take(700) && !room.take(1));
        room.found(150);
        assert!(room.take(50) && !room.take(1));
        room.found(50);
        assert!(!room.take(1));
        room.found(900);
        assert!(room.take(800), "namespaces were removed");
    }
}
