//! Buddy allocator over numbered units. It keeps track of free units, and never touches the memory
//! that they stand for.

use std::mem;

const NONE: u32 = u32::MAX;
/// Value of `free_order` for a unit that does not begin a free run.
const TAKEN: u8 = u8::MAX;

/// Blocks of `1 << top` units, split on demand and merged again when both halves are free.
#[derive(Debug)]
pub(super) struct Buddy {
    top: u8,
    free_units: u32,
    /// First unit of the first free run of each order, or [`NONE`].
    heads: Vec<u32>,
    units: Vec<Unit>,
}

/// State of a unit that begins a free run: the order of the run, and its neighbours in the list of
/// that order.
#[derive(Clone, Debug)]
struct Unit {
    next: u32,
    previous: u32,
    free_order: u8,
}

impl Buddy {
    pub(super) fn new(blocks: u32, top: u8) -> Self {
        let units = (blocks as usize) << top;
        let mut buddy = Self {
            top,
            free_units: 0,
            heads: vec![NONE; usize::from(top) + 1],
            units: vec![Unit { next: NONE, previous: NONE, free_order: TAKEN }; units],
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
        self.units.len() as u32
    }

    pub(super) fn free_units(&self) -> u32 {
        self.free_units
    }

    /// Allocates a run of `1 << order` units; returns its first unit.
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
            if self.units[buddy as usize].free_order != order {
                break;
            }
            self.remove(buddy);
            unit &= !(1 << order);
            order += 1;
        }
        self.insert(unit, order);
    }

    fn insert(&mut self, unit: u32, order: u8) {
        let head = mem::replace(&mut self.heads[usize::from(order)], unit);
        let taken = &mut self.units[unit as usize];
        debug_assert_eq!(taken.free_order, TAKEN, "released twice");
        *taken = Unit { next: head, previous: NONE, free_order: order };
        if head != NONE {
            self.units[head as usize].previous = unit;
        }
    }

    fn remove(&mut self, unit: u32) {
        let free = &mut self.units[unit as usize];
        let order = mem::replace(&mut free.free_order, TAKEN);
        let (previous, next) = (free.previous, free.next);
        match previous {
            NONE => self.heads[usize::from(order)] = next,
            previous => self.units[previous as usize].next = next,
        }
        if next != NONE {
            self.units[next as usize].previous = previous;
        }
    }
}
