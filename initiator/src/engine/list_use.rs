//! When ranges of a namespace are read in lists.

/// Use of lists for a namespace. If little of a list is in the cache of the target, the list costs
/// a message more than Reads alone, so further ranges are read without lists for some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListUse {
    /// Ranges to read without lists.
    pause: u32,
    /// Length of the pause that follows a list which brought little.
    next_pause: u32,
}

impl Default for ListUse {
    fn default() -> Self {
        Self { pause: 0, next_pause: Self::MIN_PAUSE }
    }
}

impl ListUse {
    const MIN_PAUSE: u32 = 128;
    const MAX_PAUSE: u32 = 8192;

    /// Whether the next range may be in a list. Counts it if not.
    pub(crate) fn may_gather(&mut self) -> bool {
        let may = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        may
    }

    /// Records how many ranges of a list were read.
    pub(crate) fn answered(&mut self, read: u32, count: u32) {
        if 2 * read >= count {
            self.next_pause = Self::MIN_PAUSE;
        } else {
            self.pause = self.next_pause;
            self.next_pause = (2 * self.next_pause).min(Self::MAX_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads_until_a_list(lists: &mut ListUse) -> u32 {
        (0..).find(|_| lists.may_gather()).expect("a pause ends")
    }

    #[test]
    fn pauses_grow_until_a_list_is_read() {
        let mut lists = ListUse::default();
        assert_eq!(reads_until_a_list(&mut lists), 0);
        let pauses: Vec<u32> = (0..8)
            .map(|_| {
                lists.answered(1, 3);
                reads_until_a_list(&mut lists)
            })
            .collect();
        assert_eq!(pauses, [128, 256, 512, 1024, 2048, 4096, 8192, 8192]);
        lists.answered(2, 4);
        assert_eq!(reads_until_a_list(&mut lists), 0);
        lists.answered(0, 1);
        assert_eq!(reads_until_a_list(&mut lists), 128);
    }
}
