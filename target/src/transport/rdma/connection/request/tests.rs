//! Slots, and commands that are completed once.

use proptest::prelude::*;

use super::*;

fn begin(slots: &mut Slots, cid: u16, receive: u32) -> CompletionPermit {
    let free = slots.take_free().expect("there is room");
    slots.begin(free, Cid(cid), Receive(receive), Time::ZERO)
}

/// Completes a command and sends its response.
fn answer(slots: &mut Slots, permit: CompletionPermit) {
    let cid = permit.cid();
    let slot = slots.complete(permit, CommandOutcome::SUCCESS, ResponseData::default());
    assert_eq!(slots.send(slot).map(|content| content.cid), Some(cid));
    assert!(slots.send(slot).is_none(), "sent once");
}

#[test]
fn an_id_is_found_until_its_response_is_posted() {
    let mut slots = Slots::new(2, 2);
    let permit = begin(&mut slots, 0xFFFF, 0);
    let slot = permit.slot();
    assert_eq!(slots.find(Cid(0xFFFF)), Some(slot));
    assert_eq!(slots.find(Cid(0)), None);
    answer(&mut slots, permit);
    assert_eq!(slots.find(Cid(0xFFFF)), None);
    let other = begin(&mut slots, 0xFFFF, 1);
    assert!(slots.free.is_empty());
    assert_eq!(slots.find(Cid(0xFFFF)), Some(other.slot()));
    assert!(slots.end(slot).is_some());
    assert!(slots.abandon(other.slot()).is_none());
    other.abandon();
    assert!(slots.in_use().is_empty());
}

#[test]
fn ids_of_one_chain_are_distinguished() {
    let mut unanswered = Unanswered::new(4);
    let cids = [0, 4, 8, 4].map(Cid);
    for (slot, cid) in (0..).map(SlotId).zip(cids) {
        unanswered.add(slot, cid);
    }
    assert_eq!(cids.map(|cid| unanswered.find(cid)), [0, 1, 2, 1].map(|slot| Some(SlotId(slot))));
    unanswered.remove(SlotId(1));
    unanswered.remove(SlotId(1));
    assert_eq!(cids.map(|cid| unanswered.find(cid)), [0, 3, 2, 3].map(|slot| Some(SlotId(slot))));
    for slot in [0, 3, 2].map(SlotId) {
        unanswered.remove(slot);
    }
    assert_eq!(cids.map(|cid| unanswered.find(cid)), [None; 4]);
    unanswered.add(SlotId(3), Cid(12));
    assert_eq!(unanswered.find(Cid(12)), Some(SlotId(3)));
}

#[test]
#[should_panic(expected = "never completed")]
#[cfg(debug_assertions)]
fn a_command_can_not_be_forgotten() {
    let mut slots = Slots::new(1, 1);
    drop(begin(&mut slots, 1, 0));
}

#[test]
fn a_stage_is_left_only_by_its_own_way() {
    let mut slots = Slots::new(1, 1);
    let permit = begin(&mut slots, 1, 0);
    let slot = permit.slot();
    assert!(slots.send(slot).is_none() && slots.end(slot).is_none(), "not completed yet");
    let request = slots.get(slot);
    assert!(request.take_parked().is_none() && request.take_run().is_none());
    assert!(request.take_fetch().is_none() && request.take_orphan().is_none());
    assert!(request.take_waiting().is_none() && request.begin_fetch().is_none());
    assert!(matches!(request.stage, RequestStage::InCall));
    let slot = slots.complete(permit, CommandOutcome::SUCCESS, ResponseData::default());
    assert!(slots.end(slot).is_none(), "not sent yet");
    assert!(slots.send(slot).is_some());
    let sent = slots.end(slot).expect("it was sent");
    assert_eq!((sent.send_entries, sent.bytes, sent.buffer.is_some()), (1, 0, false));
    assert!(slots.end(slot).is_none(), "ended once");
}

proptest! {
    /// Any sequence of arrivals, answers and ends, compared with a list of the CIDs in use.
    #[test]
    fn a_slot_is_one_commands_from_its_arrival_to_its_end(
        steps in prop::collection::vec((0..3, 0u16..6, any::<prop::sample::Index>()), 1..200)
    ) {
        const COUNT: usize = 8;
        let mut slots = Slots::new(2, COUNT as u32);
        let mut live: Vec<(SlotId, u16, Option<CompletionPermit>)> = Vec::new();
        let mut count = 2;
        for (step, (what, cid, index)) in steps.into_iter().enumerate() {
            if step == 20 {
                count += slots.grow();
                prop_assert_eq!(count, COUNT);
            }
            let unanswered =
                live.iter().any(|(_, other, permit)| *other == cid && permit.is_some());
            match what {
                0 if live.len() < count && !unanswered => {
                    let permit = begin(&mut slots, cid, 0);
                    let slot = permit.slot();
                    let is_new = live.iter().all(|(other, ..)| *other != slot);
                    live.push((slot, cid, Some(permit)));
                    assert!(is_new, "used twice");
                }
                1 if !live.is_empty() => {
                    let index = index.index(live.len());
                    if let Some(permit) = live[index].2.take() {
                        answer(&mut slots, permit);
                    }
                }
                2 if !live.is_empty() => {
                    let (slot, cid, permit) = live.swap_remove(index.index(live.len()));
                    assert_eq!(slots.get(slot).cid, Cid(cid));
                    match permit {
                        Some(permit) => {
                            assert!(slots.abandon(slot).is_none());
                            permit.abandon();
                        }
                        None => assert!(slots.end(slot).is_some()),
                    }
                }
                _ => {}
            }
            assert_eq!(!slots.free.is_empty(), live.len() < count);
            assert_eq!(slots.in_use().len(), live.len());
            for cid in 0..6 {
                let unanswered =
                    live.iter().find(|(_, other, permit)| *other == cid && permit.is_some());
                assert_eq!(slots.find(Cid(cid)), unanswered.map(|(slot, ..)| *slot));
            }
        }
        live.into_iter().filter_map(|(.., permit)| permit).for_each(CompletionPermit::abandon);
    }
}
