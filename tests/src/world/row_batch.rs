//! Rows of one plan, which the host may read with commands that list several of them.

use std::ops::Range;

use feedrail_initiator::{
    Entry, Error, Grant, Host, Namespace, PlanError, Region, Shards, Submit, Ticket,
};

use super::history::{History, ReadId};

/// Rows that are read one after the other into one region.
pub(super) struct RowBatch {
    ticket: Ticket,
    region: Region,
    namespace: usize,
    rows: Vec<(Range<usize>, ReadId)>,
}

impl RowBatch {
    /// Begins to read rows of the namespace with this number.
    pub(super) fn begin(
        host: &Host,
        (number, namespace): (usize, &Namespace),
        places: Vec<Range<usize>>,
        grant: Grant,
        history: &mut History,
    ) -> Result<Self, Error> {
        let mut dst = 0;
        let plan: Vec<Entry> = places
            .iter()
            .map(|place| {
                let (offset, length) = (place.start as u64, place.len() as u32);
                let entry = Entry { shard: 0, length, offset, dst };
                dst += u64::from(length);
                entry
            })
            .collect();
        let region = Region::allocate(dst as usize, grant)?;
        let shards = Shards::new([namespace.clone()])?;
        let submitted = host.submit(&shards, &plan, &region, Submit::default());
        let ticket = submitted.map_err(|error| match error {
            PlanError::Host(error) => error,
            other => panic!("a valid plan: {other}"),
        })?;
        let rows = places.into_iter().map(|place| (place, history.begin_read())).collect();
        Ok(Self { ticket, region, namespace: number, rows })
    }

    /// Whether every row has its result.
    pub(super) fn is_done(&self) -> bool {
        self.ticket.is_done()
    }

    /// Number of the namespace.
    pub(super) fn namespace(&self) -> usize {
        self.namespace
    }

    /// Checks the rows that were read. Returns the number of them, and the errors of the others.
    ///
    /// # Panics
    /// Bytes of a row are none that it may have.
    pub(super) fn end(self, history: &mut History) -> (Vec<Vec<u8>>, Vec<Error>) {
        let (mut read, mut errors, mut at) = (Vec::new(), Vec::new(), 0);
        for (number, (place, id)) in self.rows.into_iter().enumerate() {
            let mut bytes = vec![0; place.len()];
            self.region.copy_out(at, &mut bytes).expect("the plan has ended");
            at += place.len();
            if let Some(error) = self.ticket.error(number) {
                history.abandon_read(id);
                errors.push(error);
                continue;
            }
            if let Err(wrong) = history.end_read(id, place.start, &bytes) {
                panic!("row {number} of namespace {}, {place:?}: {wrong}", self.namespace + 1);
            }
            read.push(bytes);
        }
        (read, errors)
    }

    /// Gives up the rows, whose host is gone.
    pub(super) fn forget(self, history: &mut History) {
        self.rows.into_iter().for_each(|(_, id)| history.abandon_read(id));
    }
}
