//! Reported support equals actual support, for every code and every kind of controller.

use nvme_proto::feature::{
    ErrorRecovery, Feature, FeatureCapabilities, FeatureId, GetFeatures, Select, SetFeatures,
};
use nvme_proto::identify::{Cns, Identify, IdentifyController, IdentifyNamespace};
use nvme_proto::log::{
    CommandEffects, EffectsLog, FeatureEffects, FeatureEffectsLog, GetLogPage, LogId,
    SupportedLogPages,
};
use nvme_proto::nvm::WriteZeroes;
use nvme_proto::{AdminOpcode, Csi, FromBytes, LbaRange, Nsid, NvmCommand, NvmOpcode, U16};

use super::admin::{identified, log};
use super::discovery::discovery;
use super::*;
use crate::controller::IoKind;

/// One writable namespace, NSID 1.
fn writable() -> Arc<Associations> {
    associations()
}

fn read_only() -> Arc<Associations> {
    associations_of(&CONFIG.replace("\"memory\"\n", "\"memory\"\nread_only = true\n"))
}

fn without_deallocate() -> Arc<Associations> {
    associations_of(&CONFIG.replace("host = true\n", "host = true\ndeallocate = false\n"))
}

fn all() -> [Arc<Associations>; 3] {
    [writable(), read_only(), without_deallocate()]
}

fn page<T: FromBytes>(line: &mut Line, lid: LogId) -> T {
    let bytes = log(line, GetLogPage::new(lid, size_of::<T>() as u64)).expect("offered");
    T::read_from_bytes(&bytes).expect("its size")
}

/// Whether a queue accepts an opcode as that of a command.
fn takes(line: &mut Line, opcode: u8) -> bool {
    let entry = match opcode {
        0x7F if line.queue.qid().is_admin() => {
            PropertyGet { property: Property::VS, size: PropertySize::FourBytes }.to_sqe()
        }
        0x7F => nvme_proto::fabrics::Disconnect.to_sqe(),
        _ => Sqe::new(opcode).with_nsid(Nsid(1)),
    };
    let parsed = line.queue.parse(line.now, &entry);
    parsed.err().is_none_or(|outcome| !outcome.status.is(Status::INVALID_OPCODE))
}

#[test]
fn commands_are_taken_as_their_effects_say() {
    for associations in all() {
        let (mut line, cntlid) = ready(&associations, Time::ZERO);
        let mut io = io_queue(&associations, 1, cntlid, Time::ZERO);
        let effects: EffectsLog = page(&mut line, LogId::EFFECTS);
        for opcode in 0..=255 {
            let listed = effects.io(NvmOpcode(opcode));
            let usual = [CommandEffects::new(), CommandEffects::SUPPORTED, CommandEffects::WRITES];
            assert!(
                usual.contains(&listed),
                "Linux logs others as unusual: {opcode:#x} {listed:?}"
            );
            let admin = effects.admin(AdminOpcode(opcode));
            assert_eq!(admin.supported(), takes(&mut line, opcode), "{}", AdminOpcode(opcode));
            let nvm = effects.io(NvmOpcode(opcode));
            assert_eq!(nvm.supported(), takes(&mut io, opcode), "{}", NvmOpcode(opcode));
        }
        let id: IdentifyController = identified(&mut line, Cns::CONTROLLER, 0);
        let has = |opcode| effects.io(opcode).supported();
        assert_eq!(id.oncs.compare(), has(NvmOpcode::COMPARE));
        assert_eq!(id.oncs.dataset_management(), has(NvmOpcode::DATASET_MANAGEMENT));
        assert_eq!(id.oncs.write_zeroes(), has(NvmOpcode::WRITE_ZEROES));
        assert_eq!(id.oncs.write_uncorrectable(), has(NvmOpcode::WRITE_UNCORRECTABLE));
        assert_eq!(id.oncs.reservations(), has(NvmOpcode::RESERVATION_REGISTER));
        assert_eq!(id.oncs.verify(), has(NvmOpcode::VERIFY));
        assert_eq!(id.oncs.copy(), has(NvmOpcode::COPY));
        let has = |opcode| effects.admin(opcode).supported();
        assert_eq!(id.oacs.security(), has(AdminOpcode::SECURITY_SEND));
        assert_eq!(id.oacs.format_nvm(), has(AdminOpcode::FORMAT_NVM));
        assert_eq!(id.oacs.firmware(), has(AdminOpcode::FIRMWARE_COMMIT));
        assert_eq!(id.oacs.namespace_management(), has(AdminOpcode::NAMESPACE_MANAGEMENT));
        assert_eq!(id.oacs.self_test(), has(AdminOpcode::DEVICE_SELF_TEST));
        assert_eq!(id.oacs.directives(), has(AdminOpcode::DIRECTIVE_SEND));
        assert_eq!(id.oacs.get_lba_status(), has(AdminOpcode::GET_LBA_STATUS));
        assert_eq!(id.ofcs.disconnect(), has(AdminOpcode::FABRICS));
        // Compare and Write, the only defined fused operation.
        let mut first = Sqe::new(NvmOpcode::COMPARE.0).with_nsid(Nsid(1));
        first.flags.set_fuse(1);
        let fused = io.queue.parse(io.now, &first).is_ok();
        assert_eq!(id.fuses.get(), u16::from(fused));
    }
}

/// Every value of CNS that a controller has, whether it takes CSI, and its statuses for the NSIDs 0
/// and 2, which no namespace has.
type Described = (Cns, bool, Result<(), Status>, Result<(), Status>);

const NO_NAMESPACE: Result<(), Status> = Err(Status::INVALID_NAMESPACE_OR_FORMAT);

const OF_IO_CONTROLLERS: [Described; 8] = [
    (Cns::NAMESPACE, false, NO_NAMESPACE, Ok(())),
    (Cns::CONTROLLER, false, Ok(()), Ok(())),
    (Cns::ACTIVE_NAMESPACES, false, Ok(()), Ok(())),
    (Cns::NAMESPACE_DESCRIPTORS, false, NO_NAMESPACE, NO_NAMESPACE),
    (Cns::IO_COMMAND_SET_NAMESPACE, true, NO_NAMESPACE, Ok(())),
    (Cns::IO_COMMAND_SET_CONTROLLER, true, Ok(()), Ok(())),
    (Cns::IO_COMMAND_SET_ACTIVE_NAMESPACES, true, Ok(()), Ok(())),
    (Cns::INDEPENDENT_NAMESPACE, false, NO_NAMESPACE, Ok(())),
];

const OF_DISCOVERY: [Described; 1] = [(Cns::CONTROLLER, false, Ok(()), Ok(()))];

fn describes_as_listed(line: &mut Line, listed: &[Described]) {
    for cns in (0..=255).map(Cns) {
        let mut ask = |nsid, csi| {
            let of_nsid = Identify::namespace(cns, Nsid(nsid));
            line.without_data(Identify { csi, ..of_nsid }.to_sqe()).status().without_flags().ok()
        };
        let entry = listed.iter().find(|entry| entry.0 == cns);
        let invalid = Err(Status::INVALID_FIELD);
        let (takes_csi, none, gap) =
            entry.map_or((false, invalid, invalid), |entry| (entry.1, entry.2, entry.3));
        assert_eq!(ask(0, Csi::NVM), none, "{cns}, no NSID");
        assert_eq!(ask(2, Csi::NVM), gap, "{cns}, an NSID of no namespace");
        assert_eq!(ask(1, Csi::NVM).is_ok(), entry.is_some(), "{cns}, a namespace");
        assert_eq!(ask(1, Csi::ZONED).is_ok(), entry.is_some() && !takes_csi, "{cns}, CSI");
    }
}

#[test]
fn identify_describes_listed_namespaces() {
    for associations in all() {
        describes_as_listed(&mut ready(&associations, Time::ZERO).0, &OF_IO_CONTROLLERS);
    }
    describes_as_listed(&mut discovery(&associations(), "a"), &OF_DISCOVERY);
}

#[test]
fn discovery_claims_nothing_that_is_optional() {
    let id: IdentifyController =
        identified(&mut discovery(&associations(), "a"), Cns::CONTROLLER, 0);
    let bits = (id.oacs.into_bits(), id.oncs.into_bits(), id.fuses, id.ofcs.into_bits());
    assert_eq!(bits, (U16::ZERO, U16::ZERO, U16::ZERO, U16::ZERO));
    assert_eq!((id.vwc.into_bits(), id.nwpc.into_bits()), (0, 0));
}

#[test]
fn discovery_takes_its_own_commands_only() {
    let mut line = discovery(&associations(), "a");
    let taken: Vec<_> = (0..=255).filter(|opcode| takes(&mut line, *opcode)).collect();
    assert_eq!(taken, [0x02, 0x06, 0x09, 0x0A, 0x0C, 0x18, 0x7F]);
}

#[test]
fn log_pages_are_there_as_listed() {
    let mut lines: Vec<_> =
        all().iter().map(|associations| ready(associations, Time::ZERO).0).collect();
    lines.push(discovery(&associations(), "a"));
    for line in &mut lines {
        let supported: SupportedLogPages = page(line, LogId::SUPPORTED_PAGES);
        for lid in (0..=255).map(LogId) {
            let there = log(line, GetLogPage::new(lid, 4));
            assert_eq!(supported.page(lid).supported(), there.is_ok(), "{lid}");
            assert!(there.err().is_none_or(|status| status.is(Status::INVALID_LOG_PAGE)), "{lid}");
        }
        let id: IdentifyController = identified(line, Cns::CONTROLLER, 0);
        let has = |lid| supported.page(lid).supported();
        assert_eq!(id.lpa.effects(), has(LogId::EFFECTS));
        assert_eq!(id.lpa.supported_pages(), has(LogId::FEATURE_EFFECTS));
        assert_eq!(id.lpa.supported_pages(), has(LogId::NVME_MI_EFFECTS));
        assert_eq!(id.lpa.telemetry(), has(LogId::TELEMETRY_HOST));
        assert_eq!(id.lpa.persistent_events(), has(LogId::PERSISTENT_EVENTS));
        assert!(id.lpa.extended_data());
    }
}

/// Checks whether a controller has a feature, for every feature identifier.
fn has_features(line: &mut Line, listed: impl Fn(FeatureId) -> FeatureEffects) {
    for fid in (0..=255).map(FeatureId) {
        let listed = listed(fid);
        let nsid = if listed.scope().namespace() { Nsid(1) } else { Nsid::NONE };
        let current = GetFeatures { nsid, ..GetFeatures::current(fid) };
        let cqe = line.without_data(current.to_sqe());
        assert_eq!(cqe.status().is_success(), listed.supported(), "{fid}: {}", cqe.status());
        let value = Feature::parse(fid, cqe.result() as u32).expect("its own value");
        let set = SetFeatures { nsid, save: false, feature: value };
        let set = line.without_data(set.to_sqe()).status();
        assert_eq!(set.is(Status::INVALID_FIELD), !listed.supported(), "{fid}: {set}");
        if listed.supported() {
            let get = GetFeatures { select: Select::CAPABILITIES, ..current };
            let cqe = line.without_data(get.to_sqe());
            let capabilities = FeatureCapabilities::from_bits(cqe.result() as u32);
            assert_eq!(capabilities.namespace_specific(), listed.scope().namespace(), "{fid}");
        }
    }
}

#[test]
fn features_are_there_as_listed() {
    for associations in all() {
        let (mut line, _) = ready(&associations, Time::ZERO);
        let effects: FeatureEffectsLog = page(&mut line, LogId::FEATURE_EFFECTS);
        has_features(&mut line, |fid| effects.feature(fid));
        let id: IdentifyController = identified(&mut line, Cns::CONTROLLER, 0);
        // Timestamp.
        assert_eq!(id.oncs.timestamp(), effects.feature(FeatureId(0x0E)).supported());
        let has = |fid| effects.feature(fid).supported();
        assert_eq!(id.vwc.present(), has(FeatureId::VOLATILE_WRITE_CACHE));
        assert_eq!(id.nwpc.supported(), has(FeatureId::NAMESPACE_WRITE_PROTECTION));
        let feature = Feature::KeepAliveTimer { timeout_ms: 5000 };
        let set = SetFeatures { nsid: Nsid::NONE, save: true, feature };
        let saved = line.without_data(set.to_sqe()).status();
        assert_eq!(id.oncs.save_and_select(), saved.is_success(), "{saved}");
    }
}

/// A discovery controller has no page that lists them.
#[test]
fn discovery_has_its_own_features_only() {
    let supported = FeatureEffects::new().with_supported(true);
    has_features(&mut discovery(&associations(), "a"), |fid| match fid {
        FeatureId::ASYNC_EVENT_CONFIG | FeatureId::KEEP_ALIVE_TIMER => supported,
        _ => FeatureEffects::new(),
    });
}

#[test]
fn caches_and_protection_need_something_writable() {
    for (associations, offered) in [(writable(), true), (read_only(), false)] {
        let (mut line, _) = ready(&associations, Time::ZERO);
        let id: IdentifyController = identified(&mut line, Cns::CONTROLLER, 0);
        assert_eq!((id.vwc.present(), id.nwpc.supported()), (offered, offered));
        for fid in [FeatureId::VOLATILE_WRITE_CACHE, FeatureId::NAMESPACE_WRITE_PROTECTION] {
            let get = GetFeatures { nsid: Nsid::NONE, ..GetFeatures::current(fid) };
            let get = line.without_data(get.to_sqe()).status();
            assert_eq!(get.is(Status::INVALID_FIELD), !offered, "{fid}: {get}");
        }
    }
}

#[test]
fn deallocation_can_be_switched_off() {
    for (associations, allowed) in [(writable(), true), (without_deallocate(), false)] {
        let (mut line, cntlid) = ready(&associations, Time::ZERO);
        let mut io = io_queue(&associations, 1, cntlid, Time::ZERO);
        let id: IdentifyNamespace = identified(&mut line, Cns::NAMESPACE, 1);
        assert_eq!(id.dlfeat.write_zeroes_deallocates(), allowed);
        let zeroes = NvmCommand::WriteZeroes(WriteZeroes {
            nsid: Nsid(1),
            range: LbaRange { slba: 0, blocks: 8 },
            deallocate: true,
            fua: false,
            limited_retry: false,
        });
        let (_, work) = io.io(zeroes.to_sqe()).expect("zeros are written either way");
        assert_eq!(work.kind, IoKind::WriteZeroes { fua: false, deallocate: allowed });
    }
}

#[test]
fn error_recovery_is_that_of_each_namespace() {
    let associations = associations();
    let (mut line, _) = ready(&associations, Time::ZERO);
    let mut get = |nsid| {
        let current = GetFeatures::current(FeatureId::ERROR_RECOVERY);
        line.without_data(GetFeatures { nsid: Nsid(nsid), ..current }.to_sqe())
    };
    for nsid in [1, 3] {
        let cqe = get(nsid);
        assert!(cqe.status().is_success(), "{}", cqe.status());
        assert_eq!(cqe.result(), 0, "no time limit, and no error of deallocated blocks");
    }
    for nsid in [0, 2, 9, u32::MAX] {
        assert!(get(nsid).status().is(Status::INVALID_NAMESPACE_OR_FORMAT), "{nsid}");
    }
    let mut set = |nsid, recovery| {
        let feature = Feature::ErrorRecovery(recovery);
        let set = SetFeatures { nsid: Nsid(nsid), save: false, feature };
        line.without_data(set.to_sqe()).status()
    };
    let recovery = ErrorRecovery::new();
    assert!(set(1, recovery).is_success() && set(u32::MAX, recovery).is_success());
    assert!(set(2, recovery).is(Status::INVALID_NAMESPACE_OR_FORMAT));
    assert!(set(1, recovery.with_time_limit(5)).is(Status::FEATURE_NOT_CHANGEABLE));
    assert!(set(1, recovery.with_deallocated_error(true)).is(Status::INVALID_FIELD));
}
