//! How far a command with a list of ranges is.

use nvme_proto::nvm::ListedRange;

/// Progress along a list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ListProgress {
    /// Ranges that were read completely, and their bytes.
    pub(super) ranges: u32,
    pub(super) bytes: u32,
    /// Bytes of the next range that were read.
    pub(super) part: u32,
}

impl ListProgress {
    pub(super) fn next<'a>(&self, list: &'a [ListedRange]) -> Option<&'a ListedRange> {
        list.get(self.ranges as usize)
    }

    /// Records that bytes of the next range were read, or the rest of it.
    pub(super) fn add(&mut self, range: &ListedRange, bytes: u32) {
        self.part += bytes;
        if self.part == range.length_bytes.get() {
            (self.ranges, self.bytes, self.part) = (self.ranges + 1, self.bytes + self.part, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_count_once_they_are_read_whole() {
        let list = [ListedRange::new(0, 10), ListedRange::new(90, 5)];
        let mut progress = ListProgress::default();
        for (bytes, expected) in [(4, (0, 0, 4)), (6, (1, 10, 0)), (5, (2, 15, 0))] {
            let range = progress.next(&list).expect("it is not over");
            progress.add(range, bytes);
            assert_eq!((progress.ranges, progress.bytes, progress.part), expected);
        }
        assert_eq!(progress.next(&list), None);
    }
}
