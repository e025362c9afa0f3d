//! Opcodes of the command sets and the way their data goes. wire §6, wire §10, wire §14, wire §23

/// Which way the data of a command goes: the two low bits of its opcode. wire §5.1
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataDirection {
    /// 00b: the command moves no data.
    None,
    /// 01b: a write.
    HostToController,
    /// 10b: a read.
    ControllerToHost,
    /// 11b: both; no command of the reference uses it.
    Both,
}

impl DataDirection {
    /// From the two low bits of an opcode, or of a Fabrics command type.
    #[inline]
    #[must_use]
    pub const fn of(opcode: u8) -> Self {
        match opcode & 3 {
            0 => Self::None,
            1 => Self::HostToController,
            2 => Self::ControllerToHost,
            _ => Self::Both,
        }
    }
}

/// A set of opcodes whose two low bits are the direction of the data.
macro_rules! opcodes {
    ($($name:ident)*) => {$(
        impl $name {
            /// Which way the data of the command goes, if it has any.
            #[inline]
            #[must_use]
            pub const fn data_direction(self) -> DataDirection {
                DataDirection::of(self.raw())
            }
        }
    )*};
}

opcodes! { AdminOpcode FabricsType NvmOpcode KvOpcode }

tables! {
    /// Opcode of a command on the admin queue. wire §10, wire §11, wire §12, wire §13, wire §18
    pub codes AdminOpcode: u8 {
        0x02 GET_LOG_PAGE, "Get Log Page";
        0x06 IDENTIFY, "Identify";
        0x08 ABORT, "Abort";
        0x09 SET_FEATURES, "Set Features";
        0x0A GET_FEATURES, "Get Features";
        0x0C ASYNC_EVENT_REQUEST, "Asynchronous Event Request";
        0x18 KEEP_ALIVE, "Keep Alive";
        0x21 DISCOVERY_INFORMATION_MANAGEMENT, "Discovery Information Management";
        0x7F FABRICS, "Fabrics";
        0x86 GET_LBA_STATUS, "Get LBA Status";
    }

    /// Type of a Fabrics command (opcode 0x7F), at byte 4 of the entry. wire §6
    pub codes FabricsType: u8 {
        0x00 PROPERTY_SET, "Property Set";
        0x01 CONNECT, "Connect";
        0x04 PROPERTY_GET, "Property Get";
        0x05 AUTHENTICATION_SEND, "Authentication Send";
        0x06 AUTHENTICATION_RECEIVE, "Authentication Receive";
        0x08 DISCONNECT, "Disconnect";
    }

    /// Opcode on an I/O queue for a namespace of the NVM command set. wire §14 From 0x80 on they are our own: wire §14.1
    pub codes NvmOpcode: u8 {
        0x00 FLUSH, "Flush";
        0x01 WRITE, "Write";
        0x02 READ, "Read";
        0x04 WRITE_UNCORRECTABLE, "Write Uncorrectable";
        0x05 COMPARE, "Compare";
        0x08 WRITE_ZEROES, "Write Zeroes";
        0x09 DATASET_MANAGEMENT, "Dataset Management";
        0x0C VERIFY, "Verify";
        0x0D RESERVATION_REGISTER, "Reservation Register";
        0x0E RESERVATION_REPORT, "Reservation Report";
        0x11 RESERVATION_ACQUIRE, "Reservation Acquire";
        0x15 RESERVATION_RELEASE, "Reservation Release";
        0x19 COPY, "Copy";
        0x7F FABRICS, "Fabrics";
        0x86 GET_LBA_STATUS, "Get LBA Status";
    }

    /// Opcode on an I/O queue for a namespace of the key-value command set. wire §23 From 0x80 on they are our own:
    /// docs/kv-commands.md
    pub codes KvOpcode: u8 {
        0x01 STORE, "Store";
        0x02 RETRIEVE, "Retrieve";
        0x06 LIST, "List";
        0x10 DELETE, "Delete";
        0x14 EXIST, "Exist";
        0x7F FABRICS, "Fabrics";
        0x81 BATCH_SUBMIT, "Batch Submit";
        0x82 BATCH_COLLECT, "Batch Collect";
        0x84 PIN, "Pin";
        0x85 ATOMIC, "Atomic";
        0x88 VECTOR_SCALAR, "Vector Update by Scalar";
        0x89 VECTOR_VECTOR, "Vector Update by Vector";
        0x8A VECTOR_FILTER, "Vector Filter";
        0x8C VECTOR_REDUCE, "Vector Reduce";
        0x8D RETRIEVE_SUBMIT, "Retrieve Submit";
        0x8E VECTOR_FETCH, "Vector Fetch and Update";
        0x91 STORE_SUBMIT, "Store Submit";
        0x94 STORE_FLAGS, "Store Flags";
        0x95 STORE_DATA, "Store Data";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_directions<O: Copy + std::fmt::Display>(
        data_direction: fn(O) -> DataDirection,
        without_data: &[O],
        to_controller: &[O],
        to_host: &[O],
    ) {
        for (direction, opcodes) in [
            (DataDirection::None, without_data),
            (DataDirection::HostToController, to_controller),
            (DataDirection::ControllerToHost, to_host),
        ] {
            for opcode in opcodes {
                assert_eq!(data_direction(*opcode), direction, "{opcode}");
            }
        }
    }

    /// wire §14
    #[test]
    fn nvm_commands_move_data_as_the_table_says() {
        use NvmOpcode as Op;
        assert_directions(
            Op::data_direction,
            &[Op::FLUSH, Op::WRITE_UNCORRECTABLE, Op::WRITE_ZEROES, Op::VERIFY],
            &[
                Op::WRITE,
                Op::COMPARE,
                Op::DATASET_MANAGEMENT,
                Op::RESERVATION_REGISTER,
                Op::RESERVATION_ACQUIRE,
                Op::RESERVATION_RELEASE,
                Op::COPY,
            ],
            &[Op::READ, Op::RESERVATION_REPORT, Op::GET_LBA_STATUS],
        );
    }

    /// wire §6, wire §23
    #[test]
    fn fabrics_and_kv_commands_move_data_as_the_tables_say() {
        use FabricsType as Fabrics;
        use KvOpcode as Op;
        assert_directions(
            Fabrics::data_direction,
            &[Fabrics::PROPERTY_SET, Fabrics::PROPERTY_GET, Fabrics::DISCONNECT],
            &[Fabrics::CONNECT, Fabrics::AUTHENTICATION_SEND],
            &[Fabrics::AUTHENTICATION_RECEIVE],
        );
        assert_directions(
            Op::data_direction,
            &[Op::DELETE, Op::EXIST, Op::PIN, Op::VECTOR_SCALAR, Op::VECTOR_REDUCE, Op::STORE_FLAGS],
            &[
                Op::STORE,
                Op::BATCH_SUBMIT,
                Op::ATOMIC,
                Op::VECTOR_VECTOR,
                Op::RETRIEVE_SUBMIT,
                Op::STORE_SUBMIT,
                Op::STORE_DATA,
            ],
            &[Op::RETRIEVE, Op::LIST, Op::BATCH_COLLECT, Op::VECTOR_FILTER, Op::VECTOR_FETCH],
        );
    }

    #[test]
    fn admin_commands_move_data_as_their_low_bits_say() {
        use AdminOpcode as Op;
        assert_directions(
            Op::data_direction,
            &[Op::ABORT, Op::ASYNC_EVENT_REQUEST, Op::KEEP_ALIVE],
            &[Op::SET_FEATURES],
            &[Op::GET_LOG_PAGE, Op::IDENTIFY, Op::GET_FEATURES, Op::GET_LBA_STATUS],
        );
        assert_eq!(DataDirection::of(0xFF), DataDirection::Both);
    }

    #[test]
    fn an_unknown_opcode_stays_visible() {
        let opcode = NvmOpcode::from_raw(0xC5);
        assert_eq!(opcode.raw(), 0xC5);
        assert_eq!(opcode.name(), None);
        insta::assert_snapshot!(format!("{opcode}, {opcode:?}"), @"unknown 0xc5, NvmOpcode(0xc5 unknown)");
        insta::assert_snapshot!(
            format!("{}, {:?}", AdminOpcode::IDENTIFY, AdminOpcode::IDENTIFY),
            @"Identify, AdminOpcode(0x06 Identify)"
        );
    }
}
