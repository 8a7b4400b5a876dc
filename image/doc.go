// Package image keeps images: read-only root file systems that sandboxes are
// made of.
//
// # The life of an image
//
// An image starts as a tree of files: [Store.Build] makes one from a [Recipe]
// with mmdebstrap, [Store.Pull] and [Store.Import] flatten the layers of an OCI
// image. The tree is finished (mount points, the account of the user, nothing
// that differs from build to build), written as one EROFS file (no set-user-id
// bits, no capabilities, no devices), and only then given its name, by one
// rename. Until that moment all work happens under tmp/, behind a lock that dies
// with the process, so a killed build leaves nothing but what the next [Open]
// sweeps.
//
// # On disk
//
//	blobs/sha256-<hex>.erofs    the file systems, by the digest of their bytes
//	names/<name>.json           what a name stands for now
//	snapshots/<hex>/<key>/      warm snapshots of an image, see [Key]
//	locks/                      one lock per name; flock, so nothing to clean up
//	tmp/                        work in progress
//	states/<id>/                the state of one sandbox, see [Kept] and [OpenWith]
//
// # Trust
//
// The bytes of an OCI image are hostile. They are only ever touched through an
// [os.Root], every count and size is bounded by [Limits], and nothing in an image
// (environment, hooks, paths) reaches a process of the host.
package image
