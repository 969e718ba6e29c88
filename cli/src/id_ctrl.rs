//! `feedrail id-ctrl`: the Identify Controller data structure (CNS 01h).

use anyhow::Result;
use clap::Args;
use nvme_proto::identify::{IdentifyController, PowerState};
use serde_json::{Map, Value, json};

use crate::fields::{Field, decimal, digits, hex, json_object, lines, text};
use crate::options::{Format, Output, SubsystemArgs};
use crate::output;
use crate::session::Session;

const EXAMPLES: &str = "\
Examples:
  feedrail id-ctrl -a 192.0.2.10 -n NQN
  feedrail id-ctrl -a 192.0.2.10 -n NQN -o json";

/// Shows the Identify Controller data of a subsystem's controller, with nvme-cli's field names
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IdCtrl {
    #[command(flatten)]
    subsystem: SubsystemArgs,
    #[command(flatten)]
    output: Output,
}

impl IdCtrl {
    pub(crate) fn run(&self) -> Result<()> {
        let session = Session::open(&self.subsystem)?;
        let id = session.identify_controller()?;
        output::print(&match self.output.output_format {
            Format::Json => output::json(&Value::Object(to_json(&id))),
            Format::Normal => to_text(&id),
        })
    }
}

/// Fields of the structure, in its order.
fn fields(id: &IdentifyController) -> [Field; 86] {
    [
        hex("vid", &id.vid),
        hex("ssvid", &id.ssvid),
        text("sn", &id.sn),
        text("mn", &id.mn),
        text("fr", &id.fr),
        decimal("rab", &id.rab),
        hex("ieee", &id.ieee),
        hex("cmic", &id.cmic),
        decimal("mdts", &id.mdts),
        hex("cntlid", &id.cntlid().0.to_le_bytes()),
        hex("ver", &id.ver),
        hex("rtd3r", &id.rtd3r),
        hex("rtd3e", &id.rtd3e),
        hex("oaes", &id.oaes),
        hex("ctratt", &id.ctratt),
        hex("rrls", &id.rrls),
        hex("cntrltype", &id.cntrltype),
        digits("fguid", &id.fguid),
        decimal("crdt1", &id.crdt[0]),
        decimal("crdt2", &id.crdt[1]),
        decimal("crdt3", &id.crdt[2]),
        hex("nvmsr", &id.nvmsr),
        hex("vwci", &id.vwci),
        hex("mec", &id.mec),
        hex("oacs", &id.oacs),
        decimal("acl", &id.acl_z),
        decimal("aerl", &id.aerl_z),
        hex("frmw", &id.frmw),
        hex("lpa", &id.lpa),
        decimal("elpe", &id.elpe_z),
        decimal("npss", &id.npss_z),
        hex("avscc", &id.avscc),
        hex("apsta", &id.apsta),
        decimal("wctemp", &id.wctemp),
        decimal("cctemp", &id.cctemp),
        decimal("mtfa", &id.mtfa),
        decimal("hmpre", &id.hmpre),
        decimal("hmmin", &id.hmmin),
        decimal("tnvmcap", &id.tnvmcap),
        decimal("unvmcap", &id.unvmcap),
        hex("rpmbs", &id.rpmbs),
        decimal("edstt", &id.edstt),
        decimal("dsto", &id.dsto),
        decimal("fwug", &id.fwug),
        decimal("kas", &id.kas),
        hex("hctma", &id.hctma),
        decimal("mntmt", &id.mntmt),
        decimal("mxtmt", &id.mxtmt),
        hex("sanicap", &id.sanicap),
        decimal("hmminds", &id.hmminds),
        decimal("hmmaxd", &id.hmmaxd),
        decimal("nsetidmax", &id.nsetidmax),
        decimal("endgidmax", &id.endgidmax),
        decimal("anatt", &id.anatt),
        hex("anacap", &id.anacap),
        decimal("anagrpmax", &id.anagrpmax),
        decimal("nanagrpid", &id.nanagrpid),
        decimal("pels", &id.pels),
        decimal("domainid", &id.domainid),
        decimal("megcap", &id.megcap),
        decimal("cqt", &id.cqt),
        hex("sqes", &id.sqes),
        hex("cqes", &id.cqes),
        decimal("maxcmd", &id.maxcmd),
        decimal("nn", &id.nn),
        hex("oncs", &id.oncs),
        hex("fuses", &id.fuses),
        hex("fna", &id.fna),
        hex("vwc", &id.vwc),
        decimal("awun", &id.awun_z),
        decimal("awupf", &id.awupf_z),
        decimal("icsvscc", &id.icsvscc),
        hex("nwpc", &id.nwpc),
        decimal("acwu", &id.acwu_z),
        hex("ocfs", &id.ocfs),
        hex("sgls", &id.sgls),
        decimal("mnan", &id.mnan),
        decimal("maxdna", &id.maxdna),
        decimal("maxcna", &id.maxcna),
        text("subnqn", &id.subnqn),
        decimal("ioccsz", &id.ioccsz),
        decimal("iorcsz", &id.iorcsz),
        decimal("icdoff", &id.icdoff),
        hex("fcatt", &id.fcatt),
        decimal("msdbd", &id.msdbd),
        hex("ofcs", &id.ofcs),
    ]
}

fn to_json(id: &IdentifyController) -> Map<String, Value> {
    let mut object = json_object(&fields(id));
    object.insert("psds".into(), id.power_states().iter().map(power_state_json).collect());
    object
}

fn to_text(id: &IdentifyController) -> String {
    let mut text = String::from("NVME Identify Controller:\n");
    text += &lines(&fields(id), 10);
    for (number, state) in id.power_states().iter().enumerate() {
        text += &format!("ps {number:>7}: mp:{:.2}W\n", state.max_power_watts());
    }
    text
}

fn power_state_json(state: &PowerState) -> Value {
    let [read_throughput, read_latency, write_throughput, write_latency] =
        state.relative.map(|relative| relative & 0x1F);
    json!({
        "max_power": state.mp.get(),
        "max_power_scale": u8::from(state.counts_tenths_of_mw()),
        "non-operational_state": u8::from(state.is_non_operational()),
        "entry_lat": state.enlat.get(),
        "exit_lat": state.exlat.get(),
        "read_tput": read_throughput,
        "read_lat": read_latency,
        "write_tput": write_throughput,
        "write_lat": write_latency,
        "idle_power": state.idlp.get(),
        "idle_scale": state.ips >> 6,
        "active_power": state.actp.get(),
        "active_power_work": state.apws & 7,
        "active_scale": state.apws >> 6,
    })
}

#[cfg(test)]
mod tests {
    use nvme_proto::{AsciiField, FromZeros, U32};

    use super::*;
    use crate::fields::pattern;

    #[test]
    fn every_field_is_shown_from_its_place() {
        let id: IdentifyController = pattern();
        let json = output::json(&Value::Object(to_json(&id)));
        assert_eq!(json, include_str!("../tests/data/id-ctrl.json"));
        assert_eq!(to_text(&id), include_str!("../tests/data/id-ctrl.txt"));
    }

    #[test]
    fn known_values_come_out() {
        let mut id = IdentifyController::new_zeroed();
        id.sn = AsciiField::new("SN1").unwrap();
        id.mdts = 5;
        id.nn = U32::new(1024);
        let json = to_json(&id);
        assert_eq!(
            (&json["sn"], &json["mdts"], &json["nn"]),
            (&json!("SN1"), &json!(5), &json!(1024))
        );
        assert_eq!(json["psds"].as_array().unwrap().len(), 1);
        assert!(to_text(&id).contains("mdts      : 5\n"));
    }

    #[test]
    fn every_power_state_count_is_safe() {
        for npss in 0..=u8::MAX {
            let mut id = IdentifyController::new_zeroed();
            id.npss_z = npss;
            assert_eq!(id.power_states().len(), (usize::from(npss) + 1).min(32));
        }
    }
}
