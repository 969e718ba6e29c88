//! Reports on machines that were written by hand, and on paths that were made up.

use std::fs;
use std::path::{Path, PathBuf};

use super::finding::FindingId;
use super::tree::tests::unpack;
use super::*;

/// Where machines and reports are.
fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/doctor")
}

/// Compares a report with the recorded one.
pub(crate) fn expect(name: &str, findings: Vec<DoctorFinding>) {
    let report = DoctorReport::new(findings).to_text();
    let path = data().join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &report).unwrap();
    }
    let recorded = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(recorded, report, "{}", path.display());
}

const AS_IT_IS: Wanted = Wanted { source: None, tos: None, provider: ProviderArg::Auto };

/// A machine of these trees, the later ones over the earlier.
struct MadeUp(tempfile::TempDir);

impl MadeUp {
    fn of(trees: &[&str]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        trees.iter().for_each(|tree| folder.change(tree));
        folder
    }

    fn change(&self, tree: &str) {
        let text = fs::read_to_string(data().join(format!("{tree}.tree"))).expect(tree);
        unpack(&text, self.0.path());
    }

    fn tree(&self) -> SystemTree {
        SystemTree::recorded(self.0.path())
    }

    /// Findings when the machine changes between the two samples, which are 2 s apart.
    fn findings(&self, wanted: Wanted, change: Option<&str>) -> Vec<DoctorFinding> {
        let tree = self.tree();
        let machine = LocalMachine::read(&tree, tree.addresses().unwrap());
        let before = MachineSample::take(&tree, &machine);
        let mut findings = machine.examine(&tree, wanted);
        change.into_iter().for_each(|tree| self.change(tree));
        let after = MachineSample::take(&tree, &machine);
        findings.extend(after.since(&before, Duration::from_secs(2)));
        findings
    }
}

/// A case: the name of its report, its trees, what is wanted, and what changes between the samples.
type Case = (&'static str, &'static [&'static str], Wanted, Option<&'static str>);

#[test]
fn machines_get_their_reports() {
    let tos = |tos| Wanted { tos: Some(tos), ..AS_IT_IS };
    let soft = Wanted { provider: ProviderArg::Soft, ..AS_IT_IS };
    let cases: &[Case] = &[
        ("mlx5-healthy", &["mlx5"], AS_IT_IS, None),
        ("mlx5-pfc-off", &["mlx5", "pfc-off"], AS_IT_IS, None),
        ("mlx5-best-effort", &["mlx5", "best-effort"], AS_IT_IS, None),
        ("mlx5-tos-160", &["mlx5"], tos(160), None),
        ("mlx5-trust-pcp", &["mlx5", "trust-pcp"], AS_IT_IS, None),
        ("mlx5-mtu-1500", &["mlx5", "mtu-1500"], AS_IT_IS, None),
        ("mlx5-roce-v1", &["mlx5", "roce-v1"], AS_IT_IS, None),
        ("mlx5-no-gids", &["mlx5", "no-gids"], AS_IT_IS, None),
        ("mlx5-second-address", &["mlx5", "second-address"], AS_IT_IS, None),
        ("mlx5-port-down", &["mlx5", "port-down"], AS_IT_IS, None),
        ("mlx5-inbox", &["mlx5", "inbox"], AS_IT_IS, None),
        ("mlx5-no-dcb", &["mlx5", "no-dcb"], AS_IT_IS, None),
        ("mlx5-memlock", &["mlx5", "memlock"], AS_IT_IS, None),
        ("mlx5-no-libraries", &["mlx5", "no-libraries"], AS_IT_IS, None),
        ("mlx5-rising", &["mlx5"], AS_IT_IS, Some("mlx5-rising")),
        ("bnxt", &["bnxt"], AS_IT_IS, None),
        ("bnxt-pfc-off", &["bnxt", "bnxt-pfc-off"], AS_IT_IS, None),
        ("efa", &["efa"], AS_IT_IS, None),
        ("irdma-iwarp", &["irdma"], AS_IT_IS, None),
        ("cxgb4-iwarp", &["cxgb4"], AS_IT_IS, None),
        ("mana", &["mana"], AS_IT_IS, None),
        ("rxe", &["rxe"], AS_IT_IS, None),
        ("rxe-soft", &["rxe"], soft, None),
        ("rxe-unused", &["rxe", "rxe-unused"], AS_IT_IS, None),
        ("no-rdma", &["no-rdma"], AS_IT_IS, None),
        ("no-rdma-root", &["no-rdma", "root"], AS_IT_IS, None),
        ("no-rdma-quiet", &["no-rdma", "no-rdma-quiet"], AS_IT_IS, None),
        ("no-rdma-busy", &["no-rdma", "no-rdma-quiet"], AS_IT_IS, Some("busy")),
        ("port-taken", &["no-rdma", "no-rdma-quiet", "port-taken"], AS_IT_IS, None),
        ("port-shared", &["no-rdma", "no-rdma-quiet", "port-taken", "port-shared"], AS_IT_IS, None),
        (
            "port-of-nobody",
            &["no-rdma", "no-rdma-quiet", "port-taken", "port-of-nobody"],
            AS_IT_IS,
            None,
        ),
    ];
    for (name, trees, wanted, change) in cases {
        expect(name, MadeUp::of(trees).findings(*wanted, *change));
    }
}

/// A finding that nothing brings about in a test could be wrong for ever.
#[test]
fn every_finding_is_in_some_report() {
    let reports = fs::read_dir(data()).unwrap().map(|entry| entry.unwrap().path());
    let reports = reports.filter(|path| path.extension().is_some_and(|ext| ext == "txt"));
    let all: String = reports.map(|path| fs::read_to_string(path).unwrap()).collect();
    for id in FindingId::ALL {
        let line = format!("{:<7}  {}: ", id.severity().name(), id.name());
        assert!(all.lines().any(|other| other.starts_with(&line)), "{line}");
    }
}

#[test]
fn json_says_what_the_text_says() {
    let findings = MadeUp::of(&["mlx5", "mtu-1500"]).findings(AS_IT_IS, None);
    let value = DoctorReport::new(findings).to_json();
    assert_eq!((&value["worst"], &value["warnings"]), (&"warning".into(), &1.into()));
    let finding = &value["findings"][0];
    assert_eq!((&finding["id"], &finding["subject"]), (&"port-mtu".into(), &"ens1".into()));
    assert_eq!(finding["mend"][0], "ip link set ens1 mtu 4200");
    assert_eq!(finding["look"], serde_json::json!([]));
}

#[test]
fn the_exit_code_is_that_of_the_worst_finding() {
    let code =
        |trees: &[&str]| DoctorReport::new(MadeUp::of(trees).findings(AS_IT_IS, None)).exit_code();
    assert_eq!(code(&["mlx5"]), ExitCode::SUCCESS);
    assert_eq!(code(&["mlx5", "mtu-1500"]), ExitCode::from(3));
    assert_eq!(code(&["mlx5", "mtu-1500", "port-down"]), ExitCode::from(4));
}

/// The machine under the test, whatever it is.
#[test]
fn a_live_machine_can_be_looked_at() {
    let tree = SystemTree::live();
    let machine = LocalMachine::read(&tree, tree.addresses().unwrap());
    let sample = MachineSample::take(&tree, &machine);
    let findings = machine.examine(&tree, AS_IT_IS);
    assert!(!findings.is_empty(), "either a device or none");
    let _ = sample.since(&sample, Duration::from_secs(1));
}
