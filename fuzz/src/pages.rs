//! Identify data and log pages, as an initiator reads them.

use std::fmt::Debug;

use nvme_proto::identify::{
    Descriptors, FileInfo, IdDescriptor, IdentifyController, IdentifyNamespace, NamespaceList,
    write_descriptors,
};
use nvme_proto::log::{
    AnaGroups, DiscoveryEntry, DiscoveryHeader, EffectsLog, ErrorLogEntry, SmartLog,
};
use nvme_proto::{AdminOpcode, LbaFormat, Nqn, NqnField, NvmOpcode, view};

use crate::input::Input;

/// Which page, then its bytes: nothing that a target says is misunderstood for more than it said.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.choice(8);
    let page = input.rest();
    match kind {
        0 => controller(page),
        1 => namespace(page),
        2 => descriptors(page),
        3 => namespaces(page),
        4 => discovery(page),
        5 => asymmetric_access(page),
        6 => effects(page),
        _ => health(page),
    }
}

fn print(what: &impl Debug) {
    assert!(!format!("{what:?}").is_empty());
}

fn name(field: &NqnField) {
    if let Ok(nqn) = field.parse() {
        assert_eq!(Nqn::new(nqn.as_str()), Ok(nqn));
        assert_eq!(NqnField::from(nqn).parse(), Ok(nqn));
        assert!(!nqn.as_str().chars().any(char::is_control));
    }
}

fn controller(page: &[u8]) {
    let Ok(controller) = view::<IdentifyController>(page) else { return };
    print(controller);
    for mpsmin in [0, 15, 255] {
        if let Some(bytes) = controller.max_transfer_bytes(mpsmin) {
            assert!(bytes.is_power_of_two() && bytes > 4096);
        }
    }
    assert!(controller.in_capsule_bytes() <= u64::from(u32::MAX) * 16);
    for text in
        [controller.sn.text(), controller.mn.text(), controller.fr.text()].into_iter().flatten()
    {
        assert!(text.is_ascii());
    }
    name(&controller.subnqn);
}

fn namespace(page: &[u8]) {
    let Ok(namespace) = view::<IdentifyNamespace>(page) else { return };
    print(namespace);
    if let Some(bytes) = namespace.lba_format().as_ref().and_then(LbaFormat::block_bytes) {
        assert!(bytes.is_power_of_two() && bytes >= 512);
    }
    if let Some(file) = namespace.file_info() {
        let mut again = FileInfo::new(file.length_bytes(), file.name());
        if let Some(generation) = file.generation() {
            again = again.with_generation(generation);
            again = again.with_description(file.description().unwrap_or_default());
        }
        assert_eq!(FileInfo::parse(&again.to_bytes()), Some(file));
    }
}

fn descriptors(page: &[u8]) {
    let found: Vec<IdDescriptor> = Descriptors::new(page).collect();
    let mut again = vec![0; page.len()];
    write_descriptors(&mut again, &found);
    assert_eq!(Descriptors::new(&again).collect::<Vec<_>>(), found);
}

fn namespaces(page: &[u8]) {
    let Ok(list) = view::<NamespaceList>(page) else { return };
    let nsids: Vec<_> = list.iter().collect();
    assert!(nsids.len() <= 1024 && nsids.iter().all(|nsid| nsid.0 != 0));
    if let Some(next) = list.next_after() {
        assert_eq!(nsids.last(), Some(&next));
    }
}

/// The page as it is read: a header, then entries as far as they arrived whole.
fn discovery(page: &[u8]) {
    let Ok(header) = view::<DiscoveryHeader>(page) else { return };
    print(header);
    for entry in page[size_of::<DiscoveryHeader>()..].chunks(size_of::<DiscoveryEntry>()) {
        let Ok(entry) = view::<DiscoveryEntry>(entry) else { return };
        print(entry);
        name(&entry.subnqn);
        for text in [entry.traddr.text(), entry.trsvcid.text()].into_iter().flatten() {
            assert!(text.is_ascii());
        }
    }
}

fn asymmetric_access(page: &[u8]) {
    let mut bytes = 0;
    for (group, nsids) in AnaGroups::new(page) {
        print(group);
        assert_eq!(nsids.len() as u64, u64::from(group.nnsid.get()));
        bytes += size_of_val(group) + size_of_val(nsids);
    }
    assert!(bytes <= page.len());
}

fn effects(page: &[u8]) {
    let Ok(log) = view::<EffectsLog>(page) else { return };
    for opcode in 0..=u8::MAX {
        print(&(log.admin(AdminOpcode(opcode)), log.io(NvmOpcode(opcode))));
    }
}

fn health(page: &[u8]) {
    if let Ok(log) = view::<SmartLog>(page) {
        print(log);
    }
    for entry in page.chunks(size_of::<ErrorLogEntry>()) {
        if let Ok(entry) = view::<ErrorLogEntry>(entry) {
            print(entry);
            print(&entry.status());
        }
    }
}
