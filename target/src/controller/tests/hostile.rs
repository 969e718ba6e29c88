//! Bytes that no host should send: nothing panics, every command is answered, and other hosts are
//! not affected.

use proptest::prelude::*;

use super::*;

/// An entry, mostly with a known opcode, so that most pass the first check.
fn entry() -> impl Strategy<Value = Sqe> {
    let opcode = prop_oneof![
        Just(0x7F_u8),
        Just(0x06),
        Just(0x02),
        Just(0x09),
        Just(0x0A),
        Just(0x08),
        Just(0x0C),
        Just(0x18),
        Just(0x01),
        Just(0x00),
        any::<u8>(),
    ];
    let small = prop_oneof![4 => 0_u32..0x100, 1 => any::<u32>()];
    let dwords = (small.clone(), small.clone(), small.clone(), small.clone(), small.clone(), small);
    (opcode, 0_u32..9, prop::bool::weighted(0.95), dwords).prop_map(|(opcode, nsid, sgl, d)| {
        let mut sqe = Sqe::new(opcode);
        sqe.nsid = nsid.into();
        if !sgl {
            sqe.flags = nvme_proto::SqeFlags::new();
        }
        (sqe.cdw10, sqe.cdw11, sqe.cdw12) = (d.0.into(), d.1.into(), d.2.into());
        (sqe.cdw13, sqe.cdw14, sqe.cdw15) = (d.3.into(), d.4.into(), d.5.into());
        sqe
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn nothing_panics(
        entries in prop::collection::vec((0_usize..3, entry(), any::<u8>(), 0_u64..3), 1..60),
    ) {
        let associations = associations();
        let (mut bystander, _) = ready(&associations, Time::ZERO);
        let (admin, cntlid) = ready(&associations, Time::ZERO);
        let mut lines = [admin, io_queue(&associations, 1, cntlid, Time::ZERO), Line::new(&associations, 2, Time::ZERO)];
        let mut data = vec![0_u8; 65_536];
        let mut now = Time::ZERO;
        for (which, sqe, fill, pause) in entries {
            now = now + Duration::from_secs(pause);
            let line = &mut lines[which];
            line.now = now;
            data[..1024].fill(fill);
            if let Ok(command) = line.queue.parse(now, &sqe) {
                let length = command.transfer.map_or(0, |transfer| transfer.length_bytes as usize);
                prop_assert!(length <= 65_536);
                match command.work {
                    CommandWork::Control(work) => {
                        line.queue.execute(now, Cid(1), work, &mut data[..length]);
                    }
                    CommandWork::Io(work) => {
                        line.queue.finish_io(Cid(1), &work, Ok(()));
                    }
                }
            }
            for line in &mut lines {
                line.now = now;
                for event in line.events() {
                    if let QueueEvent::Abort(abort) = event {
                        line.queue.answer_abort(abort, false);
                    }
                }
            }
        }
        prop_assert!(bystander.csts().rdy());
        lines.into_iter().for_each(Line::close);
        prop_assert_eq!(associations.controllers().len(), 1);
    }
}
