//! A buddy allocator over numbered units: it decides which are free and never touches memory.

const NONE: u32 = u32::MAX;
/// In `free_order`: the unit does not begin a free run.
const TAKEN: u8 = u8::MAX;

/// Blocks of `1 << top` units, split on demand and joined again when both halves are free.
#[derive(Debug)]
pub(super) struct Buddy {
    top: u8,
    free_units: u32,
    /// For each order, the first free run of that size.
    heads: Vec<u32>,
    next: Vec<u32>,
    previous: Vec<u32>,
    /// For each unit that begins a free run, the order of the run.
    free_order: Vec<u8>,
}

impl Buddy {
    pub(super) fn new(blocks: u32, top: u8) -> Self {
        let units = (blocks as usize) << top;
        let mut buddy = Self {
            top,
            free_units: 0,
            heads: vec![NONE; usize::from(top) + 1],
            next: vec![NONE; units],
            previous: vec![NONE; units],
            free_order: vec![TAKEN; units],
        };
        for block in (0..blocks).rev() {
            buddy.insert(block << top, top);
        }
        buddy.free_units = units as u32;
        buddy
    }

    pub(super) fn top(&self) -> u8 {
        self.top
    }

    pub(super) fn units(&self) -> u32 {
        self.next.len() as u32
    }

    pub(super) fn free_units(&self) -> u32 {
        self.free_units
    }

    /// The first unit of a run of `1 << order` units.
    pub(super) fn allocate(&mut self, order: u8) -> Option<u32> {
        let found = (order..=self.top).find(|&order| self.heads[usize::from(order)] != NONE)?;
        let unit = self.heads[usize::from(found)];
        self.remove(unit);
        for half in (order..found).rev() {
            self.insert(unit + (1 << half), half);
        }
        self.free_units -= 1 << order;
        Some(unit)
    }

    pub(super) fn release(&mut self, unit: u32, order: u8) {
        self.free_units += 1 << order;
        let (mut unit, mut order) = (unit, order);
        while order < self.top {
            let buddy = unit ^ (1 << order);
            if self.free_order[buddy as usize] != order {
                break;
            }
            self.remove(buddy);
            unit &= !(1 << order);
            order += 1;
        }
        self.insert(unit, order);
    }

    fn insert(&mut self, unit: u32, order: u8) {
        debug_assert_eq!(self.free_order[unit as usize], TAKEN, "released twice");
        let head = std::mem::replace(&mut self.heads[usize::from(order)], unit);
        self.next[unit as usize] = head;
        self.previous[unit as usize] = NONE;
        if head != NONE {
            self.previous[head as usize] = unit;
        }
        self.free_order[unit as usize] = order;
    }

    fn remove(&mut self, unit: u32) {
        let order = std::mem::replace(&mut self.free_order[unit as usize], TAKEN);
        let (previous, next) = (self.previous[unit as usize], self.next[unit as usize]);
        match previous {
            NONE => self.heads[usize::from(order)] = next,
            previous => self.next[previous as usize] = next,
        }
        if next != NONE {
            self.previous[next as usize] = previous;
        }
    }
}
