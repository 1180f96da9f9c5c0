//! The types of `sys` beside the header of this machine: a C program prints sizes and offsets.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::process::Command;

use super::sys::*;

/// Where the header is, or why nothing is compared.
fn printed(program: &str) -> Option<String> {
    let folder = std::env::temp_dir().join(format!("iccl-verbs-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&source, program).unwrap();
    let built = Command::new("cc").arg(&source).arg("-o").arg(&binary).output().unwrap();
    let text = built.status.success().then(|| {
        let output = Command::new(&binary).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    let words = String::from_utf8_lossy(&built.stderr).into_owned();
    std::fs::remove_dir_all(&folder).unwrap();
    // Without the header there is nothing to compare with; anything else is an error of ours.
    let is_absent = words.contains("infiniband/verbs.h: No such file");
    assert!(text.is_some() || is_absent, "{words}");
    text
}

#[test]
fn every_offset_is_the_headers() {
    let mut program = String::from(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    let mut expected = Vec::new();
    let mut ask = |name: String, c: String, ours: usize| {
        writeln!(program, "printf(\"{name} %zu\\n\", (size_t)({c}));").unwrap();
        expected.push(format!("{name} {ours}"));
    };
    macro_rules! compare {
        ($type:ident: $($field:ident $(= $path:literal)?),*) => { $(
            #[allow(unused_mut, unused_assignments, reason = "not every field has another path")]
            {
                let mut path = stringify!($field);
                $( path = $path; )?
                ask(
                    format!("{}.{}", stringify!($type), stringify!($field)),
                    format!("offsetof(struct {}, {path})", stringify!($type)),
                    offset_of!($type, $field),
                );
            }
        )* };
    }
    macro_rules! whole {
        ($($type:ident),*) => { $(
            ask(
                format!("sizeof {}", stringify!($type)),
                format!("sizeof(struct {})", stringify!($type)),
                size_of::<$type>(),
            );
        )* };
    }
    whole!(
        ibv_device_attr,
        ibv_port_attr,
        ibv_gid_entry,
        ibv_qp_cap,
        ibv_qp_init_attr,
        ibv_global_route,
        ibv_ah_attr,
        ibv_qp_attr,
        ibv_sge,
        ibv_send_wr,
        ibv_recv_wr,
        ibv_wc,
        ibv_async_event,
        ibv_context_ops,
        ibv_device,
        ibv_mr,
        ibv_comp_channel
    );
    compare!(ibv_device: transport_type, name);
    compare!(ibv_context: device, ops, cmd_fd, async_fd);
    compare!(ibv_context_ops: poll_cq, req_notify_cq, post_send, post_recv);
    compare!(ibv_comp_channel: fd);
    compare!(ibv_cq: context, handle, cqe);
    compare!(ibv_qp: context, handle, qp_num);
    compare!(ibv_mr: addr, length, lkey, rkey);
    compare!(ibv_device_attr: max_mr_size, max_qp_wr, max_sge, max_cqe, max_mr, max_pkeys, phys_port_cnt);
    compare!(ibv_port_attr: state, active_mtu, gid_tbl_len, lid, active_width, active_speed, link_layer);
    compare!(ibv_gid_entry: gid_index, port_num, gid_type);
    compare!(ibv_qp_init_attr: send_cq, recv_cq, cap, qp_type, sq_sig_all);
    compare!(ibv_global_route: sgid_index, hop_limit, traffic_class);
    compare!(ibv_ah_attr: dlid, sl, is_global, port_num);
    compare!(ibv_qp_attr: qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, ah_attr,
        pkey_index, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry);
    compare!(ibv_send_wr: next, sg_list, num_sge, opcode, send_flags, imm_data,
        remote_addr = "wr.rdma.remote_addr", rkey = "wr.rdma.rkey");
    compare!(ibv_recv_wr: next, sg_list, num_sge);
    compare!(ibv_wc: status, opcode, vendor_err, byte_len, imm_data, qp_num);
    compare!(ibv_async_event: event_type);
    let mut number = |name: &str, ours: i64| {
        writeln!(program, "printf(\"{name} %ld\\n\", (long)({name}));").unwrap();
        expected.push(format!("{name} {ours}"));
    };
    for (name, ours) in [
        ("IBV_PORT_ACTIVE", PORT_ACTIVE),
        ("IBV_LINK_LAYER_ETHERNET", LINK_LAYER_ETHERNET.into()),
        ("IBV_TRANSPORT_IB", TRANSPORT_IB),
        ("IBV_TRANSPORT_IWARP", TRANSPORT_IWARP),
        ("IBV_QPT_RC", QP_TYPE_RC),
        ("IBV_QPS_INIT", STATE_INIT),
        ("IBV_QPS_RTR", STATE_RTR),
        ("IBV_QPS_RTS", STATE_RTS),
        ("IBV_QPS_ERR", STATE_ERR),
        ("IBV_QP_STATE", MASK_STATE),
        ("IBV_QP_ACCESS_FLAGS", MASK_ACCESS),
        ("IBV_QP_PKEY_INDEX", MASK_PKEY),
        ("IBV_QP_PORT", MASK_PORT),
        ("IBV_QP_AV", MASK_AV),
        ("IBV_QP_PATH_MTU", MASK_MTU),
        ("IBV_QP_TIMEOUT", MASK_TIMEOUT),
        ("IBV_QP_RETRY_CNT", MASK_RETRY),
        ("IBV_QP_RNR_RETRY", MASK_RNR_RETRY),
        ("IBV_QP_RQ_PSN", MASK_RQ_PSN),
        ("IBV_QP_MAX_QP_RD_ATOMIC", MASK_MAX_RD),
        ("IBV_QP_MIN_RNR_TIMER", MASK_MIN_RNR),
        ("IBV_QP_SQ_PSN", MASK_SQ_PSN),
        ("IBV_QP_MAX_DEST_RD_ATOMIC", MASK_MAX_DEST_RD),
        ("IBV_QP_DEST_QPN", MASK_DEST_QPN),
        ("IBV_ACCESS_LOCAL_WRITE", ACCESS_LOCAL_WRITE),
        ("IBV_ACCESS_REMOTE_WRITE", ACCESS_REMOTE_WRITE),
        ("IBV_ACCESS_REMOTE_READ", ACCESS_REMOTE_READ),
        ("IBV_WR_RDMA_WRITE", OPCODE_WRITE),
        ("IBV_WR_RDMA_WRITE_WITH_IMM", OPCODE_WRITE_WITH_IMM),
        ("IBV_WR_SEND", OPCODE_SEND),
        ("IBV_SEND_SIGNALED", SEND_SIGNALED as i32),
        ("IBV_SEND_INLINE", SEND_INLINE as i32),
        ("IBV_WC_RECV_RDMA_WITH_IMM", WC_RECV_WITH_IMM),
        ("IBV_GID_TYPE_ROCE_V1", GID_TYPE_ROCE_V1 as i32),
        ("IBV_GID_TYPE_ROCE_V2", GID_TYPE_ROCE_V2 as i32),
        ("IBV_WC_WR_FLUSH_ERR", super::status::FLUSHED),
        ("IBV_WC_RETRY_EXC_ERR", super::status::RETRY_EXCEEDED),
        ("IBV_WC_RNR_RETRY_EXC_ERR", super::status::RNR_EXCEEDED),
        ("IBV_EVENT_CQ_ERR", 0),
        ("IBV_EVENT_DEVICE_FATAL", 8),
        ("IBV_EVENT_PORT_ACTIVE", 9),
        ("IBV_EVENT_PORT_ERR", 10),
        ("IBV_EVENT_LID_CHANGE", 11),
        ("IBV_EVENT_PKEY_CHANGE", 12),
        ("IBV_EVENT_GID_CHANGE", 18),
    ] {
        number(name, ours.into());
    }
    program.push_str("return 0;\n}\n");
    let Some(printed) = printed(&program) else { return };
    let printed: Vec<&str> = printed.lines().collect();
    assert_eq!(printed, expected);
}
