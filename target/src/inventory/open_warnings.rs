//! Warnings about the namespaces of a configuration: counted while the namespaces are opened, then
//! logged as one line of each kind.

use crate::backend::{IoMode, OpenedBackend};
use crate::config::NamespaceConfig;
use crate::inventory::report::UnopenedFile;

/// Most files that are logged one by one; further ones are only counted.
const NAMED: usize = 16;

/// Logs the files of directories that cannot be opened.
pub(crate) fn log_unopened(files: &[UnopenedFile]) {
    for UnopenedFile { config, error, .. } in files.iter().take(NAMED) {
        tracing::warn!(nsid = %config.nsid, "left out: {error}");
    }
    if files.len() > NAMED {
        tracing::warn!(files = files.len(), "files left out in all; the first are named above");
    }
}

/// Warnings about the namespaces that are opened together.
#[derive(Default)]
pub(super) struct OpenWarnings {
    buffered: Buffered,
    tearable: Tearable,
}

impl OpenWarnings {
    pub(super) fn note(&mut self, namespace: &NamespaceConfig, opened: &OpenedBackend) {
        self.buffered.note(&namespace.name, &opened.access);
        self.tearable.note(namespace, opened);
    }

    pub(super) fn log_all(&self) {
        self.buffered.log_all();
        self.tearable.log_all();
    }
}

/// Namespaces whose I/O uses the page cache: name and reason of the first, and the number of all.
#[derive(Default)]
struct Buffered {
    first: Option<(String, String)>,
    count: usize,
}

impl Buffered {
    fn note(&mut self, name: &str, access: &IoMode) {
        let IoMode::Buffered(reason) = access else { return };
        self.first.get_or_insert_with(|| (name.to_owned(), reason.to_owned()));
        self.count += 1;
    }

    fn log_all(&self) {
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
struct Tearable {
    first: Option<(String, String)>,
    count: usize,
}

impl Tearable {
    fn note(&mut self, namespace: &NamespaceConfig, opened: &OpenedBackend) {
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
            (namespace.name.to_string(), text)
        });
    }

    fn log_all(&self) {
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
    use crate::config::{Medium, NamespaceSettings, Origin};

    #[test]
    fn tearable_blocks_are_warned_of_once() {
        let mut tearable = Tearable::default();
        let mut note = |name: &str, lba_bytes: u32, unit, writable| {
            let lba_shift = Some(lba_bytes.trailing_zeros() as u8);
            let mode = OpenMode { writable, lba_shift, ..OpenMode::default() };
            let mut opened = backend::open_memory(8192, mode).expect("there is memory");
            opened.write_unit_bytes = unit;
            let medium = Medium::Memory { size_bytes: 8192 };
            let settings = NamespaceSettings::new(name.into(), medium, writable);
            let namespace =
                settings.with_uuid(Uuid::from_u128(7), Nsid(1), Origin("a test".into()));
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
