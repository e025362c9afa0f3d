// What kubelet and its attacher ask of the driver for a volume with files, for its copies and for a block volume, with the data
// checked at each step: csi-sanity mounts volumes, and looks at nothing in them.
//
// kubelet ENDPOINT DIRECTORY [controller | shared KEYS | own KEYS]
//
// With "controller", nothing is mounted. With "shared" and "own", the node authenticates to the target, with secrets of Kubernetes
// or with the driver's own files: those of the directory KEYS.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const mib = 1 << 20

type cluster struct {
	csi.ControllerClient
	csi.NodeClient
	dir, node string
}

// A volume on the node.
type volume struct {
	id         string
	capability *csi.VolumeCapability
	context    map[string]string
	// What the driver has said of it when it was created.
	attributes map[string]string
	// What Kubernetes has of its Secret for the node.
	secrets map[string]string
}

func background() context.Context { return context.Background() }

func must(err error, what string, arguments ...any) {
	if err != nil {
		fmt.Printf("FAIL: %s: %v\n", fmt.Sprintf(what, arguments...), err)
		os.Exit(1)
	}
}

func check(is bool, what string, arguments ...any) {
	if !is {
		must(errors.New("it is not so"), what, arguments...)
	}
}

func refused(err error, code codes.Code, what string) {
	check(status.Code(err) == code, "%s: %v, not %v", what, err, code)
}

func files(kind string, mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: kind}},
	}
}

func blocks() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}

func (c *cluster) create(name string, bytes int64, capability *csi.VolumeCapability, source *csi.VolumeContentSource) *volume {
	return c.createOf(nil, name, bytes, capability, source)
}

// Creates a volume of a class with these parameters.
func (c *cluster) createOf(
	class map[string]string, name string, bytes int64, capability *csi.VolumeCapability, source *csi.VolumeContentSource,
) *volume {
	answer, err := c.CreateVolume(background(), &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{capability}, VolumeContentSource: source,
		CapacityRange: &csi.CapacityRange{RequiredBytes: bytes}, Parameters: class,
	})
	must(err, "create %s", name)
	return &volume{id: answer.Volume.VolumeId, capability: capability, attributes: answer.Volume.VolumeContext}
}

// Publishes a volume to the node, and stages it there.
func (c *cluster) attach(v *volume, name string, readonly bool) {
	c.publish(v, readonly)
	must(c.stage(v, name), "stage %s", v.id)
}

func (c *cluster) publish(v *volume, readonly bool) {
	answer, err := c.ControllerPublishVolume(background(), &csi.ControllerPublishVolumeRequest{
		VolumeId: v.id, NodeId: c.node, VolumeCapability: v.capability, Readonly: readonly, VolumeContext: v.attributes,
	})
	must(err, "publish %s to the node", v.id)
	v.context = answer.PublishContext
}

func (c *cluster) stage(v *volume, name string) error {
	must(os.MkdirAll(c.staging(name), 0o700), "the staging path")
	_, err := c.NodeStageVolume(background(), &csi.NodeStageVolumeRequest{
		VolumeId: v.id, PublishContext: v.context, StagingTargetPath: c.staging(name), VolumeCapability: v.capability,
		VolumeContext: v.attributes, Secrets: v.secrets,
	})
	return err
}

func (c *cluster) detach(v *volume, name string) {
	_, err := c.NodeUnstageVolume(background(), &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: c.staging(name)})
	must(err, "unstage %s", v.id)
	_, err = c.ControllerUnpublishVolume(background(), &csi.ControllerUnpublishVolumeRequest{VolumeId: v.id, NodeId: c.node})
	must(err, "take %s from the node", v.id)
}

func (c *cluster) staging(name string) string { return filepath.Join(c.dir, "staging", name) }
func (c *cluster) pod(name string) string     { return filepath.Join(c.dir, "pods", name, "volume") }

func (c *cluster) mount(v *volume, staged, pod string, readonly bool) error {
	_, err := c.NodePublishVolume(background(), &csi.NodePublishVolumeRequest{
		VolumeId: v.id, PublishContext: v.context, StagingTargetPath: c.staging(staged), TargetPath: c.pod(pod),
		VolumeCapability: v.capability, Readonly: readonly, VolumeContext: v.attributes,
	})
	return err
}

func (c *cluster) unmount(v *volume, pod string) {
	_, err := c.NodeUnpublishVolume(background(), &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: c.pod(pod)})
	must(err, "unpublish %s", v.id)
	_, err = os.Stat(c.pod(pod))
	check(os.IsNotExist(err), "%s is gone", c.pod(pod))
}

func (c *cluster) delete(v *volume) {
	_, err := c.DeleteVolume(background(), &csi.DeleteVolumeRequest{VolumeId: v.id})
	must(err, "delete %s", v.id)
}

func write(path, text string) {
	file, err := os.Create(path)
	must(err, "create a file")
	_, err = file.WriteString(text)
	must(err, "write")
	must(file.Sync(), "sync")
	must(file.Close(), "close")
}

func reads(path, text string) {
	got, err := os.ReadFile(path)
	must(err, "read")
	check(string(got) == text, "%s has %q, not %q", path, got, text)
}

func sizeOf(path string) int64 {
	var found syscall.Statfs_t
	must(syscall.Statfs(path, &found), "statfs")
	return int64(found.Blocks) * found.Bsize
}

// A volume with files: written, grown, copied beside itself on the same node, read-only.
func (c *cluster) filesOf(kind string, bytes int64) {
	v := c.create(kind, bytes, files(kind, csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER), nil)
	c.attach(v, kind, false)
	must(c.mount(v, kind, kind+"-1", false), "mount")
	write(c.pod(kind+"-1")+"/file", "first "+kind)
	must(c.mount(v, kind, kind+"-2", true), "mount to be read")
	reads(c.pod(kind+"-2")+"/file", "first "+kind)
	err := os.WriteFile(c.pod(kind+"-2")+"/other", nil, 0o600)
	check(errors.Is(err, syscall.EROFS), "a pod that reads cannot write: %v", err)
	c.unmount(v, kind+"-2")

	snapshot, err := c.CreateSnapshot(background(), &csi.CreateSnapshotRequest{Name: "of-" + kind, SourceVolumeId: v.id})
	must(err, "create a snapshot")
	write(c.pod(kind+"-1")+"/file", "second")
	before := sizeOf(c.pod(kind + "-1"))
	_, err = c.ControllerExpandVolume(background(), &csi.ControllerExpandVolumeRequest{
		VolumeId: v.id, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * bytes}, VolumeCapability: v.capability,
	})
	must(err, "grow")
	_, err = c.NodeExpandVolume(background(), &csi.NodeExpandVolumeRequest{
		VolumeId: v.id, VolumePath: c.pod(kind + "-1"), CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * bytes},
	})
	must(err, "grow on the node")
	after := sizeOf(c.pod(kind + "-1"))
	check(after > before+bytes/2, "%s has grown: from %d to %d bytes", kind, before, after)

	// The copy has the file system's UUID of its source, and is larger than the snapshot.
	source := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot.Snapshot.SnapshotId},
	}}
	copied := c.create("copy-of-"+kind, bytes*3/2, files("", csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER), source)
	c.attach(copied, "copy-"+kind, false)
	must(c.mount(copied, "copy-"+kind, "copy-"+kind, false), "mount the copy")
	reads(c.pod("copy-"+kind)+"/file", "first "+kind)
	reads(c.pod(kind+"-1")+"/file", "second")
	size := sizeOf(c.pod("copy-" + kind))
	check(size > before+bytes/4, "the copy has all of its device: %d bytes", size)
	c.unmount(copied, "copy-"+kind)
	c.detach(copied, "copy-"+kind)
	c.delete(copied)

	// What a pod has written is there after it has moved, and a volume that is in use stays.
	_, err = c.DeleteVolume(background(), &csi.DeleteVolumeRequest{VolumeId: v.id})
	refused(err, codes.FailedPrecondition, "delete a volume that a node has")
	c.unmount(v, kind+"-1")
	c.detach(v, kind)
	v.capability = files(kind, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY)
	c.attach(v, kind, true)
	must(c.mount(v, kind, kind+"-1", true), "mount to be read")
	reads(c.pod(kind+"-1")+"/file", "second")
	c.unmount(v, kind+"-1")
	c.detach(v, kind)
	c.delete(v)
	_, err = c.DeleteSnapshot(background(), &csi.DeleteSnapshotRequest{SnapshotId: snapshot.Snapshot.SnapshotId})
	must(err, "delete the snapshot")
	fmt.Println(kind, "ok")
}

// A block volume, which is a device; later it is not taken for a blank one.
func (c *cluster) block() {
	v := c.create("block", 64*mib, blocks(), nil)
	c.attach(v, "block", false)
	must(c.mount(v, "block", "block", false), "mount")
	written := bytes.Repeat([]byte("nvlane"), 4096)
	device, err := os.OpenFile(c.pod("block"), os.O_RDWR, 0)
	must(err, "open the device")
	_, err = device.WriteAt(written, mib)
	must(err, "write")
	must(device.Close(), "close")
	c.unmount(v, "block")
	// Bytes in the page cache reach the target before the node disconnects.
	c.detach(v, "block")
	c.attach(v, "block", false)
	must(c.mount(v, "block", "block", false), "mount again")
	device, err = os.Open(c.pod("block"))
	must(err, "open the device")
	got := make([]byte, len(written))
	_, err = device.ReadAt(got, mib)
	must(err, "read")
	check(bytes.Equal(got, written), "the bytes are there")
	must(device.Close(), "close")
	c.unmount(v, "block")
	c.detach(v, "block")

	c.attach(v, "block", true)
	must(c.mount(v, "block", "block", true), "mount to be read")
	// Kernels let it be opened for writing.
	device, err = os.OpenFile(c.pod("block"), os.O_RDWR, 0)
	if err == nil {
		_, err = device.WriteAt(written, mib)
		must(device.Close(), "close")
	}
	check(err != nil, "a device that is published to be read cannot be written")
	c.unmount(v, "block")
	c.detach(v, "block")
	c.delete(v)
	fmt.Println("block ok")
}

// A block volume that two nodes have at a time, one of them to read.
func (c *cluster) twoNodes() {
	const other = "nqn.2014-08.org.nvmexpress:uuid:c0c1c2c3-0002-4000-8000-000000000002"
	shared := blocks()
	shared.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	v := c.create("shared", 64*mib, shared, nil)
	publish := func(node string, readonly bool) error {
		_, err := c.ControllerPublishVolume(background(), &csi.ControllerPublishVolumeRequest{
			VolumeId: v.id, NodeId: node, VolumeCapability: v.capability, Readonly: readonly,
		})
		return err
	}
	nodes := func() int {
		answer, err := c.ControllerGetVolume(background(), &csi.ControllerGetVolumeRequest{VolumeId: v.id})
		must(err, "get")
		return len(answer.Status.PublishedNodeIds)
	}
	must(publish(c.node, false), "publish to one node")
	must(publish(other, true), "publish to another node")
	must(publish(other, true), "publish to it again")
	refused(publish(other, false), codes.AlreadyExists, "publish to it for writing")
	check(nodes() == 2, "both have it")
	take := func(node string) {
		_, err := c.ControllerUnpublishVolume(background(), &csi.ControllerUnpublishVolumeRequest{VolumeId: v.id, NodeId: node})
		must(err, "take it from %s", node)
	}
	take(c.node)
	take(c.node)
	check(nodes() == 1, "one has it")
	v.capability.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	refused(publish(c.node, false), codes.FailedPrecondition, "publish to a second node what one node may have")
	_, err := c.DeleteVolume(background(), &csi.DeleteVolumeRequest{VolumeId: v.id})
	refused(err, codes.FailedPrecondition, "delete a volume that a node has")
	take("")
	check(nodes() == 0, "none has it")
	c.delete(v)
	fmt.Println("two nodes ok")
}

// The secret in a file.
func secretIn(path string) string {
	text, err := os.ReadFile(path)
	must(err, "a secret")
	return strings.TrimSpace(string(text))
}

// Controllers of the kernel's host that lead to this subsystem.
func controllersOf(nqn string) []string {
	all, err := filepath.Glob("/sys/class/nvme/nvme*/subsysnqn")
	must(err, "the host's controllers")
	var found []string
	for _, path := range all {
		if text, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(text)) == nqn {
			found = append(found, filepath.Dir(path))
		}
	}
	return found
}

// Connects as a program that knows the node's name and no secret.
func (c *cluster) strangerConnects(v *volume) error {
	fabrics, err := os.OpenFile("/dev/nvme-fabrics", os.O_RDWR, 0)
	must(err, "/dev/nvme-fabrics")
	defer fabrics.Close()
	host, port, err := net.SplitHostPort(v.context["addresses"])
	must(err, "the address")
	_, err = fmt.Fprintf(fabrics, "nqn=%s,transport=tcp,traddr=%s,trsvcid=%s,hostnqn=%s", v.context["nqn"], host, port, c.node)
	return err
}

// A volume of a class whose nodes authenticate, and the target to them: nobody else has it, and it has files like any other.
func (c *cluster) authenticated(class, secrets map[string]string, host string) {
	v := c.createOf(class, "secret", 64*mib, files("ext4", csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER), nil)
	c.publish(v, false)
	if secrets != nil {
		refused(c.stage(v, "secret"), codes.FailedPrecondition, "stage without a secret")
		v.secrets = map[string]string{"dhchapSecret": secrets["dhchapCtrlSecret"], "dhchapCtrlSecret": secrets["dhchapCtrlSecret"]}
		refused(c.stage(v, "secret"), codes.Unavailable, "stage with another secret")
		v.secrets = map[string]string{"dhchapSecret": secrets["dhchapSecret"], "dhchapCtrlSecret": secrets["dhchapSecret"]}
		refused(c.stage(v, "secret"), codes.Unavailable, "stage with a target that does not know its secret")
	}
	check(c.strangerConnects(v) != nil, "a host that only knows the node's name is refused")
	check(len(controllersOf(v.context["nqn"])) == 0, "nothing is connected")
	v.secrets = secrets
	must(c.stage(v, "secret"), "stage")
	connected := controllersOf(v.context["nqn"])
	check(len(connected) == 1, "it is connected once: %v", connected)
	check(secretIn(connected[0]+"/dhchap_secret") == host, "with the secret")
	must(c.mount(v, "secret", "secret", false), "mount")
	write(c.pod("secret")+"/file", "secret")
	c.unmount(v, "secret")
	c.detach(v, "secret")
	c.attach(v, "secret", false)
	must(c.mount(v, "secret", "secret", false), "mount again")
	reads(c.pod("secret")+"/file", "secret")
	c.unmount(v, "secret")
	c.detach(v, "secret")
	check(len(controllersOf(v.context["nqn"])) == 0, "it is disconnected")
	c.delete(v)
	fmt.Println("authentication ok")
}

func main() {
	check(len(os.Args) >= 3, "kubelet ENDPOINT DIRECTORY [controller | shared KEYS | own KEYS]")
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(err, "connect")
	c := &cluster{ControllerClient: csi.NewControllerClient(connection), NodeClient: csi.NewNodeClient(connection), dir: os.Args[2]}
	info, err := c.NodeGetInfo(background(), &csi.NodeGetInfoRequest{})
	must(err, "the node")
	c.node = info.NodeId
	keys := os.Args[len(os.Args)-1]
	target := "file:" + keys + "/target.key"
	switch what := append(os.Args, "all")[3]; what {
	case "all":
		c.twoNodes()
		c.filesOf("ext4", 64*mib)
		c.filesOf("xfs", 512*mib)
		c.block()
	case "controller":
		c.twoNodes()
	case "shared":
		secrets := map[string]string{"dhchapSecret": secretIn(keys + "/nodes.key"), "dhchapCtrlSecret": secretIn(keys + "/target.key")}
		class := map[string]string{"dhchapSecret": "file:" + keys + "/nodes.key", "dhchapCtrlSecret": target}
		c.authenticated(class, secrets, secrets["dhchapSecret"])
	case "own":
		class := map[string]string{"dhchapSecret": "file:" + keys + "/nodes/{node}.key", "dhchapCtrlSecret": target}
		c.authenticated(class, nil, secretIn(keys+"/nodes/"+c.node+".key"))
	default:
		must(errors.New("it is not known"), "%s", what)
	}
	left, err := c.ListVolumes(background(), &csi.ListVolumesRequest{})
	must(err, "list")
	check(len(left.Entries) == 0, "nothing is left: %v", left.Entries)
}
