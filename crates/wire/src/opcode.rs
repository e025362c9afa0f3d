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

codes! {
    /// Opcode of a command on the admin queue. wire §10, wire §11, wire §12, wire §13, wire §18
    pub struct AdminOpcode: u8 {
        GET_LOG_PAGE = 0x02, "Get Log Page";
        IDENTIFY = 0x06, "Identify";
        ABORT = 0x08, "Abort";
        SET_FEATURES = 0x09, "Set Features";
        GET_FEATURES = 0x0A, "Get Features";
        ASYNC_EVENT_REQUEST = 0x0C, "Asynchronous Event Request";
        KEEP_ALIVE = 0x18, "Keep Alive";
        DISCOVERY_INFORMATION_MANAGEMENT = 0x21, "Discovery Information Management";
        FABRICS = 0x7F, "Fabrics";
    }
}

codes! {
    /// Type of a Fabrics command (opcode 0x7F), at byte 4 of the entry. wire §6
    pub struct FabricsType: u8 {
        PROPERTY_SET = 0x00, "Property Set";
        CONNECT = 0x01, "Connect";
        PROPERTY_GET = 0x04, "Property Get";
        AUTHENTICATION_SEND = 0x05, "Authentication Send";
        AUTHENTICATION_RECEIVE = 0x06, "Authentication Receive";
        DISCONNECT = 0x08, "Disconnect";
    }
}

codes! {
    /// Opcode on an I/O queue for a namespace of the NVM command set. wire §14
    pub struct NvmOpcode: u8 {
        FLUSH = 0x00, "Flush";
        WRITE = 0x01, "Write";
        READ = 0x02, "Read";
        WRITE_UNCORRECTABLE = 0x04, "Write Uncorrectable";
        COMPARE = 0x05, "Compare";
        WRITE_ZEROES = 0x08, "Write Zeroes";
        DATASET_MANAGEMENT = 0x09, "Dataset Management";
        VERIFY = 0x0C, "Verify";
        RESERVATION_REGISTER = 0x0D, "Reservation Register";
        RESERVATION_REPORT = 0x0E, "Reservation Report";
        RESERVATION_ACQUIRE = 0x11, "Reservation Acquire";
        RESERVATION_RELEASE = 0x15, "Reservation Release";
        COPY = 0x19, "Copy";
        FABRICS = 0x7F, "Fabrics";
    }
}

codes! {
    /// Opcode on an I/O queue for a namespace of the key-value command set. wire §23 From 0x80 on they are our own:
    /// docs/kv-commands.md
    pub struct KvOpcode: u8 {
        STORE = 0x01, "Store";
        RETRIEVE = 0x02, "Retrieve";
        LIST = 0x06, "List";
        DELETE = 0x10, "Delete";
        EXIST = 0x14, "Exist";
        FABRICS = 0x7F, "Fabrics";
        BATCH_SUBMIT = 0x81, "Batch Submit";
        BATCH_COLLECT = 0x82, "Batch Collect";
        ATOMIC = 0x85, "Atomic";
        VECTOR_SCALAR = 0x88, "Vector Update by Scalar";
        VECTOR_VECTOR = 0x89, "Vector Update by Vector";
        VECTOR_FILTER = 0x8A, "Vector Filter";
        VECTOR_REDUCE = 0x8C, "Vector Reduce";
        VECTOR_FETCH = 0x8E, "Vector Fetch and Update";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// wire §14
    #[test]
    fn nvm_commands_move_data_as_the_table_says() {
        use DataDirection::{ControllerToHost, HostToController, None};
        for (opcode, direction) in [
            (NvmOpcode::FLUSH, None),
            (NvmOpcode::WRITE, HostToController),
            (NvmOpcode::READ, ControllerToHost),
            (NvmOpcode::WRITE_UNCORRECTABLE, None),
            (NvmOpcode::COMPARE, HostToController),
            (NvmOpcode::WRITE_ZEROES, None),
            (NvmOpcode::DATASET_MANAGEMENT, HostToController),
            (NvmOpcode::VERIFY, None),
            (NvmOpcode::RESERVATION_REGISTER, HostToController),
            (NvmOpcode::RESERVATION_REPORT, ControllerToHost),
            (NvmOpcode::RESERVATION_ACQUIRE, HostToController),
            (NvmOpcode::RESERVATION_RELEASE, HostToController),
            (NvmOpcode::COPY, HostToController),
        ] {
            assert_eq!(opcode.data_direction(), direction, "{opcode}");
        }
    }

    /// wire §6, wire §23
    #[test]
    fn fabrics_and_kv_commands_move_data_as_the_tables_say() {
        use DataDirection::{ControllerToHost, HostToController, None};
        for (fctype, direction) in [
            (FabricsType::PROPERTY_SET, None),
            (FabricsType::CONNECT, HostToController),
            (FabricsType::PROPERTY_GET, None),
            (FabricsType::AUTHENTICATION_SEND, HostToController),
            (FabricsType::AUTHENTICATION_RECEIVE, ControllerToHost),
            (FabricsType::DISCONNECT, None),
        ] {
            assert_eq!(fctype.data_direction(), direction, "{fctype}");
        }
        for (opcode, direction) in [
            (KvOpcode::STORE, HostToController),
            (KvOpcode::RETRIEVE, ControllerToHost),
            (KvOpcode::LIST, ControllerToHost),
            (KvOpcode::DELETE, None),
            (KvOpcode::EXIST, None),
            (KvOpcode::BATCH_SUBMIT, HostToController),
            (KvOpcode::BATCH_COLLECT, ControllerToHost),
            (KvOpcode::ATOMIC, HostToController),
            (KvOpcode::VECTOR_SCALAR, None),
            (KvOpcode::VECTOR_VECTOR, HostToController),
            (KvOpcode::VECTOR_FILTER, ControllerToHost),
            (KvOpcode::VECTOR_REDUCE, None),
            (KvOpcode::VECTOR_FETCH, ControllerToHost),
        ] {
            assert_eq!(opcode.data_direction(), direction, "{opcode}");
        }
    }

    #[test]
    fn admin_commands_move_data_as_their_low_bits_say() {
        use DataDirection::{ControllerToHost, HostToController, None};
        for (opcode, direction) in [
            (AdminOpcode::GET_LOG_PAGE, ControllerToHost),
            (AdminOpcode::IDENTIFY, ControllerToHost),
            (AdminOpcode::ABORT, None),
            (AdminOpcode::SET_FEATURES, HostToController),
            (AdminOpcode::GET_FEATURES, ControllerToHost),
            (AdminOpcode::ASYNC_EVENT_REQUEST, None),
            (AdminOpcode::KEEP_ALIVE, None),
        ] {
            assert_eq!(opcode.data_direction(), direction, "{opcode}");
        }
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
