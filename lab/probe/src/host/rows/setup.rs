//! Admin commands of the controller start-up that fail or return impossible values.

use wire::fabrics::ConnectCommand;
use wire::id::Nsid;
use wire::identify::namespace::{Flbas, IdentifyNamespace};

use super::prelude::*;

pub(super) fn identify() -> Check<Vec<Case>> {
    let of_controller = |name: &str, change: fn(&mut [u8])| {
        with_page(name, Right::Ends, Cns::CONTROLLER, move |session| {
            let mut page = session.identify_controller().as_bytes().to_vec();
            change(&mut page);
            page
        })
    };
    let of_namespace = |name: &str, change: fn(&mut IdentifyNamespace)| {
        with_page(name, Right::Ends, Cns::NAMESPACE, move |session| {
            let mut page = session.stage.state().identify_namespace(Nsid::new(1));
            change(&mut page);
            page.as_bytes().to_vec()
        })
    };
    let mut cases = vec![
        of_namespace("NSZE 0", |namespace| namespace.nsze.set(0)),
        of_namespace("NSZE of 64 bits", |namespace| namespace.nsze.set(u64::MAX)),
        of_namespace("a format that is not there", |namespace| {
            namespace.flbas = Flbas::default().with_index(5);
        }),
        of_namespace("the last format of all", |namespace| namespace.flbas = Flbas::default().with_index(63)),
        of_controller("MDTS 255", |page| page[77] = 255),
        of_controller("MDTS 31", |page| page[77] = 31),
        of_controller("SQES and CQES 0", |page| page[512..514].fill(0)),
        of_controller("SQES FFh", |page| page[512] = 0xFF),
        of_controller("IOCCSZ 0", |page| page[1792..1796].fill(0)),
        of_controller("IOCCSZ 3", |page| page[1792..1796].copy_from_slice(&3_u32.to_le_bytes())),
        of_controller("IOCCSZ of 32 bits", |page| page[1792..1796].fill(0xFF)),
        of_controller("MAXCMD 0", |page| page[514..516].fill(0)),
        of_controller("NN of 32 bits", |page| page[516..520].fill(0xFF)),
        of_controller("KAS 0", |page| page[320..322].fill(0)),
        of_controller("everything FFh", |page| page.fill(0xFF)),
        of_controller("everything 0", |page| page.fill(0)),
    ];
    cases.extend([0, 1, 8, 31, 32, 63, 255].map(|lbads| {
        with_page(format!("LBADS {lbads}"), Right::Ends, Cns::NAMESPACE, move |session| {
            let mut page = session.stage.state().identify_namespace(Nsid::new(1)).as_bytes().to_vec();
            page[130] = lbads;
            page
        })
    }));
    Ok(cases)
}

pub(super) fn cntlids() -> Check<Vec<Case>> {
    Ok(vec![
        case(
            "another one for the I/O queue",
            Right::Fails,
            Box::new(|session, event| {
                let Event::Command { sqe, data } = event else { return Ok(Then::AsUsual) };
                let is_connect =
                    sqe.opcode == AdminOpcode::FABRICS.raw() && sqe.fctype() == FabricsType::CONNECT;
                if !is_connect || ConnectCommand::from_sqe(sqe).qid.is_admin() {
                    return Ok(Then::AsUsual);
                }
                let reply = session.controller.connect(session.stage, sqe, data)?;
                session.complete(sqe, reply.status, reply.result ^ 0x55);
                Ok(Then::GoOn)
            }),
        )
        .every_time(),
        with_page("another one in Identify", Right::Fails, Cns::CONTROLLER, |session| {
            let mut page = session.identify_controller().as_bytes().to_vec();
            page[78] ^= 0x55;
            page
        }),
    ])
}

pub(super) fn failing_setup() -> Check<Vec<Case>> {
    let failing = |count: u64, status: Status| {
        case(
            format!("command {count} fails: {status}"),
            Right::Ends,
            Box::new(move |session: &mut Session<'_>, event: &Event| {
                let Event::Command { sqe, .. } = event else { return Ok(Then::AsUsual) };
                if session.stage.pdu_count() < count {
                    return Ok(Then::AsUsual);
                }
                session.complete(sqe, status, 0);
                Ok(Then::GoOn)
            }) as Fault,
        )
    };
    let statuses = [Status::INTERNAL_ERROR, Status::INVALID_FIELD.with_dnr()];
    Ok((2..=16).flat_map(|count| statuses.map(|status| failing(count, status))).collect())
}
