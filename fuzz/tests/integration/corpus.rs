//! Every target runs its corpus, and some mutations of it from a fixed seed.

use std::sync::atomic::AtomicU64;

use feedrail_fuzz::run::{Campaign, Finding, execute};
use feedrail_fuzz::{TARGETS, corpus};

const SEED: u64 = 4;

#[test]
fn the_corpus_passes() {
    for target in &TARGETS {
        for (number, input) in corpus::load(target).unwrap().iter().enumerate() {
            let result = execute(target, input);
            assert_eq!(result, Ok(()), "input {number} of {}", target.name);
        }
    }
}

#[test]
fn mutations_of_the_corpus_pass() {
    for target in TARGETS {
        let campaign = Campaign { target, corpus: corpus::load(&target).unwrap(), seed: SEED };
        if let Err(finding) = campaign.run(target.test_executions, &[AtomicU64::new(0)]) {
            let Finding { execution, message, .. } = finding;
            panic!("{}: execution {execution} of seed {SEED}: {message}", target.name);
        }
    }
}

#[test]
fn an_execution_can_be_repeated() {
    let target = TARGETS[0];
    let campaign = Campaign { target, corpus: corpus::load(&target).unwrap(), seed: SEED };
    assert_eq!(campaign.input(7), campaign.input(7));
    assert_ne!(campaign.input(7), campaign.input(8));
    assert_ne!(campaign.input(7), Campaign { seed: SEED + 1, ..campaign.clone() }.input(7));
}

#[test]
fn findings_have_number_and_input() {
    fn fails_on_long_inputs(input: &[u8]) {
        assert!(input.len() < 8, "too long");
    }
    let target = feedrail_fuzz::FuzzTarget { run: fails_on_long_inputs, ..TARGETS[0] };
    let campaign = Campaign { target, corpus: vec![vec![0; 4]], seed: SEED };
    let finding = campaign.run(100_000, &[AtomicU64::new(0), AtomicU64::new(0)]).unwrap_err();
    assert_eq!(campaign.input(finding.execution), finding.input);
    assert!(finding.input.len() >= 8 && finding.message == "too long");
}
