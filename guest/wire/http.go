package wire

import "connectrpc.com/connect"

// What both ends of HTTP/2 on the link agree on.
const (
	// FrameSize is the largest HTTP/2 frame; with its header it fits a link frame.
	FrameSize = maxPayload - 9
	// StreamWindow bounds what one stream holds that its reader has not read yet.
	StreamWindow = 1 << 20
	// ConnWindow bounds that for all streams of the wire together.
	ConnWindow = 8 << 20
	// MaxMessage bounds one message, in bytes: a picture or a table of a kernel.
	MaxMessage = 32 << 20
	// MaxData is how much of a file or stream one message carries.
	MaxData = 256 << 10
)

// HandlerOptions are for the guest's end.
func HandlerOptions() []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithReadMaxBytes(MaxMessage),
		connect.WithCompression("gzip", nil, nil), // a pipe needs none
	}
}

// ClientOptions are for the host's end. What a guest sends is bounded before it is
// held, and never unpacked.
func ClientOptions() []connect.ClientOption {
	return []connect.ClientOption{
		connect.WithReadMaxBytes(MaxMessage),
		connect.WithAcceptCompression("gzip", nil, nil),
	}
}
