//! Faults, torn writes and delays.

use super::*;

#[test]
fn faults_follow_their_plan() {
    let inner = open_memory(1 << 20, WRITABLE).unwrap().backend;
    let plan = FaultPlan {
        nth: Some(2),
        every: Some(5),
        ranges: std::iter::once(65_536..65_537).collect(),
        ..FaultPlan::new(BackendError::from_errno(libc::EIO))
    };
    let faulty: Arc<dyn Backend> = Arc::new(Fault::new(inner, plan));
    let mut rig = Rig::each().remove(0);
    let outcomes: Vec<bool> = (0..10).map(|_| rig.read(&faulty, 0, 512).is_ok()).collect();
    let wanted: Vec<bool> = (1..=10).map(|n| n != 2 && n % 5 != 0).collect();
    assert_eq!(outcomes, wanted);
    assert_eq!(rig.read(&faulty, 65_024, 1024), Err(BackendError::from_errno(libc::EIO)));
    assert!(rig.read(&faulty, 65_024, 512).is_ok());
}

#[test]
fn a_torn_write_stores_its_first_half_and_fails() {
    let file = file_with(&vec![0; 64 << 10]);
    let inner = open_file(FilePlace::named(file.path()), WRITABLE).unwrap().backend;
    let torn: Arc<dyn Backend> = Arc::new(Tear::new(inner, 2));
    let bytes = pattern(24 << 10);
    for mut rig in Rig::each() {
        rig.write(&torn, 0, &bytes, false).unwrap();
        assert_eq!(
            rig.write(&torn, 32 << 10, &bytes, true),
            Err(BackendError::from_errno(libc::EIO))
        );
        assert!(rig.read(&torn, 32 << 10, 12 << 10).unwrap() == bytes[..12 << 10]);
        assert!(rig.read(&torn, 44 << 10, 12 << 10).unwrap() == vec![0; 12 << 10]);
        rig.write(&torn, 0, &bytes, false).unwrap();
        assert_eq!(
            rig.write(&torn, 0, &[1; 4096], false),
            Err(BackendError::from_errno(libc::EIO))
        );
        assert!(rig.read(&torn, 0, 4096).unwrap() == bytes[..4096], "too short to be torn");
    }
}

#[test]
fn a_delay_passes_before_the_operation_starts() {
    let file = file_with(&pattern(4096));
    let inner = open_file(FilePlace::named(file.path()), READ_ONLY).unwrap().backend;
    let slow: Arc<dyn Backend> = Arc::new(Delay::new(inner, Duration::from_millis(3)));
    for mut rig in Rig::each() {
        let began = rig.now;
        assert_eq!(rig.read(&slow, 0, 4096).unwrap(), pattern(4096));
        assert_eq!(rig.now - began, Duration::from_millis(3));
    }
}

#[test]
fn a_held_operation_is_cancelled_at_once() {
    let inner = open_null(1 << 20, READ_ONLY).unwrap().backend;
    let slow: Arc<dyn Backend> = Arc::new(Delay::new(inner, Duration::from_secs(1000)));
    for mut rig in Rig::each() {
        let submitted = rig.storage.submit(rig.now, 7, &slow, Operation::flush());
        let Submitted::UnderWay(key) = submitted else { panic!("{submitted:?}") };
        assert!(!rig.storage.turn(rig.now));
        rig.storage.cancel(key);
        assert!(matches!(
            rig.storage.next_report(),
            Some(StorageReport::Done { result: Err(BackendError::Cancelled), .. })
        ));
        assert_eq!(rig.storage.in_flight(), 0);
        // A stale timer has no effect, even on an operation in the same slot.
        let later = rig.now + Duration::from_secs(1);
        let _ = rig.storage.submit(later, 8, &slow, Operation::flush());
        rig.storage.turn(rig.now + Duration::from_secs(1000));
        assert!(rig.storage.next_report().is_none());
        rig.storage.cancel(key);
        assert!(rig.storage.next_report().is_none(), "a stale key names nothing");
    }
}
