//! Warnings about the namespaces of a configuration: counted while the namespaces are opened, then
//! logged as one line of each kind.

use crate::backend::{IoMode, OpenError, OpenedBackend};
use crate::config::NamespaceConfig;
use crate::inventory::error::ExportError;

/// Files of directories that cannot be opened: the error of the first, and the number of all.
#[derive(Default)]
pub(super) struct UnopenedFiles {
    first: Option<ExportError>,
    count: usize,
}

impl UnopenedFiles {
    /// Most files that are logged one by one; further ones are only counted.
    const NAMED: usize = 16;

    pub(super) fn note(&mut self, namespace: &NamespaceConfig, error: OpenError) {
        if self.count < Self::NAMED {
            tracing::warn!(nsid = %namespace.nsid, "left out: {error}");
        }
        self.count += 1;
        self.first.get_or_insert_with(|| ExportError::cannot_open(namespace, error));
    }

    /// Logs the number of files. Returns the first error if `left`, the number of opened
    /// namespaces, is 0.
    pub(super) fn log_all(self, left: usize) -> Result<(), ExportError> {
        let Some(error) = self.first else { return Ok(()) };
        if left == 0 {
            return Err(error);
        }
        if self.count > Self::NAMED {
            tracing::warn!(files = self.count, "files left out in all; the first are named above");
        }
        Ok(())
    }
}

/// Namespaces whose I/O uses the page cache: name and reason of the first, and the number of all.
#[derive(Default)]
pub(super) struct Buffered {
    first: Option<(String, String)>,
    count: usize,
}

impl Buffered {
    pub(super) fn note(&mut self, name: &str, access: &IoMode) {
        let IoMode::Buffered(reason) = access else { return };
        self.first.get_or_insert_with(|| (name.to_owned(), reason.to_owned()));
        self.count += 1;
    }

    pub(super) fn log_all(&self) {
        if let Some((name, reason)) = &self.first {
            tracing::warn!(
                name,
                reason,
                more = self.count - 1,
                "I/O goes through the page cache instead of past it"
            );
        }
    }
}

/// Writable namespaces whose logical block exceeds the unit that the device writes atomically,
/// though NVMe promises that a power failure leaves either the old or the new block (AWUPF): name
/// and message of the first, and the number of all.
#[derive(Default)]
pub(super) struct Tearable {
    first: Option<(String, String)>,
    count: usize,
}

impl Tearable {
    pub(super) fn note(&mut self, namespace: &NamespaceConfig, opened: &OpenedBackend) {
        let (lba_bytes, unit_bytes) = (1 << opened.lba_shift, opened.write_unit_bytes);
        let Some(unit_bytes) = unit_bytes.filter(|unit| *unit < lba_bytes) else { return };
        if !namespace.writable {
            return;
        }
        self.count += 1;
        self.first.get_or_insert_with(|| {
            let text = format!(
                "power failure may tear a {lba_bytes}-byte logical block: the device writes {unit_bytes} bytes as \
                 one; set lba_bytes = {unit_bytes}"
            );
            (namespace.name.clone(), text)
        });
    }

    pub(super) fn log_all(&self) {
        if let Some((name, text)) = &self.first {
            tracing::warn!(name, more = self.count - 1, "{text}");
        }
    }
}

#[cfg(test)]
mod tests {
    use nvme_proto::Nsid;
    use uuid::Uuid;

    use super::*;
    use crate::backend::{self, OpenMode};
    use crate::config::{AnaGroupId, DirectIo, DiskFaults, Medium, Origin};

    #[test]
    fn tearable_blocks_are_warned_of_once() {
        let mut tearable = Tearable::default();
        let mut note = |name: &str, lba_bytes: u32, unit, writable| {
            let lba_shift = Some(lba_bytes.trailing_zeros() as u8);
            let mode = OpenMode { writable, lba_shift, ..OpenMode::default() };
            let mut opened = backend::open_memory(8192, mode).expect("there is memory");
            opened.write_unit_bytes = unit;
            let namespace = NamespaceConfig {
                nsid: Nsid(1),
                name: name.into(),
                uuid: Uuid::nil(),
                nguid: [0; 16],
                eui64: None,
                medium: Medium::Memory { size_bytes: 8192 },
                faults: DiskFaults::NONE,
                writable,
                content_id: None,
                lba_shift,
                direct_io: DirectIo::default(),
                ana_group: AnaGroupId::DEFAULT,
                visible_to: None,
                origin: Origin("a test".into()),
            };
            tearable.note(&namespace, &opened);
        };
        note("whole", 4096, Some(4096), true);
        note("small", 512, Some(4096), true);
        note("unknown", 4096, None, true);
        note("read-only", 4096, Some(512), false);
        note("torn", 4096, Some(512), true);
        note("torn too", 1024, Some(512), true);
        let (name, text) = tearable.first.expect("some are torn");
        assert_eq!((&*name, tearable.count), ("torn", 2));
        assert_eq!(
            text,
            "power failure may tear a 4096-byte logical block: the device writes 512 bytes as one; set lba_bytes = 512"
        );
    }
}
