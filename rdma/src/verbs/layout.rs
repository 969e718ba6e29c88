//! Test that compares our struct layouts with those of the installed C headers, if there are any.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

use super::abi::*;

/// A size, offset or constant that must be equal in C and in Rust: its name, its C expression, and
/// its Rust value.
struct Fact {
    name: String,
    c: String,
    ours: i64,
}

macro_rules! whole {
    ($facts:ident, $($type:ident)*) => {
        $($facts.push(Fact {
            name: concat!("sizeof ", stringify!($type)).to_owned(),
            c: concat!("sizeof(struct ", stringify!($type), ")").to_owned(),
            ours: i64::try_from(size_of::<$type>()).expect("small"),
        });)*
    };
}

macro_rules! fields {
    ($facts:ident, $($type:ident { $($field:ident $(= $c:literal)?),* })*) => {
        $($(
            #[allow(unused_mut, unused_assignments)]
            let mut c = stringify!($field);
            $(c = $c;)?
            $facts.push(Fact {
                name: concat!(stringify!($type), ".", stringify!($field)).to_owned(),
                c: format!("offsetof(struct {}, {c})", stringify!($type)),
                ours: i64::try_from(offset_of!($type, $field)).expect("small"),
            });
        )*)*
    };
}

macro_rules! constants {
    ($facts:ident, $($ours:expr => $c:literal)*) => {
        $($facts.push(Fact { name: $c.to_owned(), c: $c.to_owned(), ours: i64::from($ours) });)*
    };
}

#[expect(clippy::vec_init_then_push, reason = "the facts come from macros")]
fn facts() -> Vec<Fact> {
    let mut facts = Vec::new();
    // Structs whose tail is left out have no size here.
    whole!(facts, ibv_device ibv_context_ops ibv_mr ibv_mw ibv_comp_channel ibv_send_wr ibv_recv_wr
        ibv_device_attr ibv_qp_cap ibv_qp_init_attr ibv_global_route ibv_ah_attr ibv_qp_attr
        ibv_async_event rdma_event_channel rdma_addr rdma_route rdma_cm_id rdma_conn_param
        rdma_ud_param rdma_cm_event ibv_mw_bind_info);
    fields!(facts,
        ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_context_ops { alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_mw { context, pd, rkey, handle, r#type = "type" }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq { context, channel, cq_context, handle, cqe }
        ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type }
        ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data_or_rkey = "imm_data", wr,
            xrc_remote_srqn = "qp_type.xrc.remote_srqn", bind_mw }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_device_attr { fw_ver, node_guid, max_mr_size, vendor_id, vendor_part_id, max_qp_wr, device_cap_flags,
            max_sge, max_cqe, max_qp_rd_atom, max_qp_init_rd_atom, max_mw, max_srq_sge, max_pkeys,
            local_ca_ack_delay, phys_port_cnt }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_qp_attr { qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr,
            pkey_index, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, timeout, retry_cnt, rnr_retry, rate_limit }
        ibv_async_event { element, event_type }
        rdma_event_channel { fd }
        rdma_addr { src_addr, dst_addr, sgid = "addr.ibaddr.sgid", dgid = "addr.ibaddr.dgid", pkey = "addr.ibaddr.pkey" }
        rdma_route { addr, path_rec, num_paths }
        rdma_cm_id { verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq,
            recv_cq_channel, recv_cq, srq, pd, qp_type }
        rdma_conn_param { private_data, private_data_len, responder_resources, initiator_depth, flow_control,
            retry_count, rnr_retry_count, srq, qp_num }
        rdma_cm_event { id, listen_id, event, status, param }
    );
    type Wc = crate::Wc;
    facts.push(Fact {
        name: "sizeof ibv_wc".to_owned(),
        c: "sizeof(struct ibv_wc)".to_owned(),
        ours: i64::try_from(size_of::<Wc>()).expect("small"),
    });
    constants!(facts,
        wr_opcode::RDMA_WRITE => "IBV_WR_RDMA_WRITE"
        wr_opcode::SEND => "IBV_WR_SEND"
        wr_opcode::RDMA_READ => "IBV_WR_RDMA_READ"
        wr_opcode::LOCAL_INV => "IBV_WR_LOCAL_INV"
        wr_opcode::BIND_MW => "IBV_WR_BIND_MW"
        wr_opcode::SEND_WITH_INV => "IBV_WR_SEND_WITH_INV"
        cm_event::ADDR_RESOLVED => "RDMA_CM_EVENT_ADDR_RESOLVED"
        cm_event::ADDR_ERROR => "RDMA_CM_EVENT_ADDR_ERROR"
        cm_event::ROUTE_RESOLVED => "RDMA_CM_EVENT_ROUTE_RESOLVED"
        cm_event::ROUTE_ERROR => "RDMA_CM_EVENT_ROUTE_ERROR"
        cm_event::CONNECT_REQUEST => "RDMA_CM_EVENT_CONNECT_REQUEST"
        cm_event::CONNECT_ERROR => "RDMA_CM_EVENT_CONNECT_ERROR"
        cm_event::UNREACHABLE => "RDMA_CM_EVENT_UNREACHABLE"
        cm_event::REJECTED => "RDMA_CM_EVENT_REJECTED"
        cm_event::ESTABLISHED => "RDMA_CM_EVENT_ESTABLISHED"
        cm_event::DISCONNECTED => "RDMA_CM_EVENT_DISCONNECTED"
        cm_event::DEVICE_REMOVAL => "RDMA_CM_EVENT_DEVICE_REMOVAL"
        cm_event::ADDR_CHANGE => "RDMA_CM_EVENT_ADDR_CHANGE"
        async_event::CQ_ERR => "IBV_EVENT_CQ_ERR"
        async_event::QP_FATAL => "IBV_EVENT_QP_FATAL"
        async_event::QP_REQ_ERR => "IBV_EVENT_QP_REQ_ERR"
        async_event::QP_ACCESS_ERR => "IBV_EVENT_QP_ACCESS_ERR"
        async_event::DEVICE_FATAL => "IBV_EVENT_DEVICE_FATAL"
        async_event::PORT_ACTIVE => "IBV_EVENT_PORT_ACTIVE"
        async_event::PORT_ERR => "IBV_EVENT_PORT_ERR"
        ACCESS_RELAXED_ORDERING => "IBV_ACCESS_RELAXED_ORDERING"
        DEVICE_MEM_WINDOW_TYPE_2 => "(IBV_DEVICE_MEM_WINDOW_TYPE_2A|IBV_DEVICE_MEM_WINDOW_TYPE_2B)"
        DEVICE_MEM_MGT_EXTENSIONS => "IBV_DEVICE_MEM_MGT_EXTENSIONS"
        MW_TYPE_2 => "IBV_MW_TYPE_2"
        QPT_RC => "IBV_QPT_RC"
        QPS_ERR => "IBV_QPS_ERR"
        QP_STATE => "IBV_QP_STATE"
        TRANSPORT_IWARP => "IBV_TRANSPORT_IWARP"
        PS_TCP => "RDMA_PS_TCP"
        OPTION_ID => "RDMA_OPTION_ID"
        OPTION_ID_TOS => "RDMA_OPTION_ID_TOS"
        OPTION_ID_AFONLY => "RDMA_OPTION_ID_AFONLY"
        OPTION_ID_ACK_TIMEOUT => "RDMA_OPTION_ID_ACK_TIMEOUT"
        crate::Access::LOCAL_WRITE.bits() => "IBV_ACCESS_LOCAL_WRITE"
        crate::Access::REMOTE_WRITE.bits() => "IBV_ACCESS_REMOTE_WRITE"
        crate::Access::REMOTE_READ.bits() => "IBV_ACCESS_REMOTE_READ"
        crate::Access::WINDOW_BIND.bits() => "IBV_ACCESS_MW_BIND"
        crate::SendFlags::FENCE.bits() => "IBV_SEND_FENCE"
        crate::SendFlags::SIGNALED.bits() => "IBV_SEND_SIGNALED"
        crate::SendFlags::SOLICITED.bits() => "IBV_SEND_SOLICITED"
        crate::SendFlags::INLINE.bits() => "IBV_SEND_INLINE"
        crate::WcOpcode::RECV.0 => "IBV_WC_RECV"
        crate::WcOpcode::RDMA_READ.0 => "IBV_WC_RDMA_READ"
        crate::WcOpcode::BIND_WINDOW.0 => "IBV_WC_BIND_MW"
        crate::WcStatus::FLUSHED.0 => "IBV_WC_WR_FLUSH_ERR"
        crate::WcStatus::REMOTE_ACCESS_ERROR.0 => "IBV_WC_REM_ACCESS_ERR"
        crate::WcStatus::RNR_RETRY_EXCEEDED.0 => "IBV_WC_RNR_RETRY_EXC_ERR"
        crate::WcStatus::GENERAL.0 => "IBV_WC_GENERAL_ERR"
    );
    facts
}

fn c_program(facts: &[Fact]) -> String {
    let mut program = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\nint main(void) {\n",
    );
    for fact in facts {
        writeln!(program, "printf(\"%lld\\n\", (long long)({}));", fact.c)
            .expect("a string takes all");
    }
    program + "return 0;\n}\n"
}

#[test]
fn layouts_equal_those_of_the_installed_headers() {
    if !Path::new("/usr/include/infiniband/verbs.h").exists()
        || !Path::new("/usr/include/rdma/rdma_cma.h").exists()
    {
        eprintln!("skipped: the headers are not installed (Debian: libibverbs-dev librdmacm-dev)");
        return;
    }
    let folder = std::env::temp_dir().join(format!("feedrail-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
    let (source, program) = (folder.join("layout.c"), folder.join("layout"));
    let facts = facts();
    std::fs::write(&source, c_program(&facts)).expect("the temporary folder is writable");
    let compiled = Command::new("cc").arg("-o").args([&program, &source]).output();
    let compiled = compiled.expect("a C compiler is installed with the headers");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&program).output().expect("just built");
    std::fs::remove_dir_all(&folder).expect("ours");
    let output = String::from_utf8(output.stdout).expect("numbers");
    let theirs: Vec<i64> = output.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(theirs.len(), facts.len());
    let differing: Vec<_> = facts
        .iter()
        .zip(&theirs)
        .filter(|(fact, theirs)| fact.ours != **theirs)
        .map(|(fact, theirs)| format!("{}: {} here, {theirs} there", fact.name, fact.ours))
        .collect();
    assert!(differing.is_empty(), "{differing:#?}");
    eprintln!("{} sizes, offsets and constants are equal", facts.len());
}
