//! Two writers of one volume, whose operations are executed in a random order.

use std::collections::BTreeSet;

use feedrail_checkpoint::{
    Change, CheckpointName, Error, LEASE_GRACE_MS, Lease, NamespaceAttributes, Opening, Procedure,
    Request, Run, VolumeOperation,
};
use uuid::Uuid;

use super::model::Contents;
use super::world::{LEASE_MS, World, Written, open};

impl World {
    /// Runs two writers: the lease of the first one has ended during its save, and the second one
    /// takes it.
    pub(super) fn two_writers(&mut self) {
        let mut first = self.reopen();
        assert!(self.claim(&mut first));
        let mut second = open(&mut self.device, self.has_compare).unwrap();
        let late_ms = self.now_ms + LEASE_MS + LEASE_GRACE_MS;
        let lease = Lease { host: Uuid::max(), number: 1, expiry_ms: late_ms + LEASE_MS };
        let early = second.publish(&Change::new().lease(lease), self.now_ms);
        assert!(matches!(early, Err(Error::Leased { .. })), "a live lease is taken over");
        self.names += 1;
        let name = format!("step-{}", self.names);
        let Written::Whole(save, entries) = self.write_save(&mut first, &name) else { return };
        let commit = Change::new().commit(&save);
        let claim = Change::new().lease(lease);
        // The clock of the first one is slow, so that it takes its lease for live.
        let Ok(committing) = first.publish(&commit, self.now_ms) else { return };
        let claiming = second.publish(&claim, late_ms).unwrap();
        let (mut committing, mut claiming) = (Run::new(committing), Run::new(claiming));
        let (mut of_first, mut of_second) = (Vec::new(), Vec::new());
        // Without Compare, the operations of the two must not be interleaved.
        let claims_first = self.device.random.chance(500_000);
        while !(committing.is_finished() && claiming.is_finished()) {
            let is_second = if self.has_compare {
                self.device.random.chance(500_000)
            } else {
                if claims_first { !claiming.is_finished() } else { committing.is_finished() }
            };
            if is_second {
                self.device.step(&mut claiming, &mut of_second, &[]);
            } else {
                self.device.step(&mut committing, &mut of_first, &[]);
            }
        }
        let (committed, claimed) = (committing.finish().unwrap(), claiming.finish().unwrap());
        assert_ne!(committed.is_ok(), claimed.is_ok(), "one of two writers must be fenced");
        self.tally.fenced += 1;
        if committed.is_ok() {
            assert!(matches!(claimed, Err(Error::Leased { .. })), "{claimed:?}");
            self.contents.insert(name, entries);
        } else {
            assert_eq!(committed, Err(Error::Fenced));
        }
        self.reopen();
    }

    /// Runs two writers that find the lease free and take it. A pause takes longer than all other
    /// operations of a claim.
    pub(super) fn two_claims(&mut self) {
        let mut first = self.reopen();
        let mut second = open(&mut self.device, self.has_compare).unwrap();
        let hosts = [Uuid::from_u128(1), Uuid::from_u128(2)];
        let expiry_ms = self.now_ms + LEASE_MS;
        let claim = |host, number| Change::new().lease(Lease { host, number, expiry_ms });
        let claims = [claim(hosts[0], 1), claim(hosts[1], 2)];
        let mut runs = [
            Run::new(first.publish(&claims[0], self.now_ms).unwrap()),
            Run::new(second.publish(&claims[1], self.now_ms).unwrap()),
        ];
        let mut waiting = [Vec::new(), Vec::new()];
        while let Some(writer) = self.next_writer(&mut runs, &mut waiting) {
            self.device.step(&mut runs[writer], &mut waiting[writer], &[]);
        }
        let results = runs.map(|run| run.finish().unwrap());
        let winner = usize::from(results[0].is_err());
        assert_eq!(results[winner], Ok(()), "nobody has the lease");
        let is_of_winner =
            |error: &Error| matches!(error, Error::Leased { host, .. } if *host == hosts[winner]);
        let refused = results[1 - winner].as_ref().is_err_and(is_of_winner);
        assert!(refused, "two writers have the lease: {results:?}");
        let (mut winner, loser) = if winner == 0 { (first, second) } else { (second, first) };
        let late = loser.begin_entries(CheckpointName::new("late").unwrap(), self.now_ms);
        assert!(matches!(late, Err(Error::NoLease)));
        self.tally.contested += 1;
        assert!(self.save(&mut winner));
    }

    /// Runs a reader that opens the volume while a writer changes it.
    pub(super) fn reader_beside_writer(&mut self) {
        let mut volume = self.reopen();
        assert!(self.claim(&mut volume));
        let facts = NamespaceAttributes { bytes: self.device.size(), has_compare: false };
        let mut run = Run::new(Opening::new(facts));
        let mut waiting = Vec::new();
        let mut states = vec![self.contents.clone()];
        while !run.is_finished() {
            for _ in 0..self.device.random.index(4) {
                let is_made = match self.device.random.chance(500_000) {
                    true => self.save(&mut volume),
                    false => self.delete(&mut volume),
                };
                assert!(is_made);
                states.push(self.contents.clone());
            }
            self.device.step(&mut run, &mut waiting, &[]);
        }
        let seen = run.finish().unwrap().expect("a volume opens beside a writer");
        assert!(!seen.is_fallen_back(), "a commit is taken for damage");
        // Its bytes may be gone by now.
        let names = |state: &Contents| state.keys().cloned().collect::<BTreeSet<_>>();
        let table = seen.manifest().checkpoints.iter().map(|one| one.name.as_str().to_owned());
        let table = table.collect::<BTreeSet<_>>();
        assert!(states.iter().any(|state| names(state) == table), "nobody committed that");
    }

    /// Returns the index of a writer that can continue, `None` if both have ended.
    fn next_writer<P: Procedure>(
        &mut self,
        runs: &mut [Run<P>; 2],
        waiting: &mut [Vec<VolumeOperation>; 2],
    ) -> Option<usize> {
        let (mut ready, mut pausing) = (Vec::new(), Vec::new());
        for (writer, (run, waiting)) in runs.iter_mut().zip(waiting).enumerate() {
            waiting.extend(std::iter::from_fn(|| run.operation()));
            match waiting.first().map(|operation| &operation.request) {
                Some(Request::Pause { .. }) => pausing.push(writer),
                Some(_) => ready.push(writer),
                None => {}
            }
        }
        let able = if ready.is_empty() { pausing } else { ready };
        able.get(self.device.random.index(able.len().max(1))).copied()
    }
}
