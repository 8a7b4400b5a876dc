package image

import (
	"regexp"
	"strings"

	"github.com/arenero/arenero"
)

var (
	nameRE   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$`)
	digestRE = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// maxName keeps the encoded name within what a file name may have.
const maxName = 180

// checkName returns an Invalid error for what cannot be the name of an image; a
// digest cannot, or it could be given to another image.
func checkName(name string) error {
	if len(name) > maxName || !nameRE.MatchString(name) || strings.Contains(name, "..") || digestRE.MatchString(name) {
		if len(name) > 64 {
			name = name[:64] + "..."
		}
		return arenero.Errorf(arenero.Invalid, "check image name", "", "%q is not a name", name).
			WithHint("use lower case letters, digits, . _ -, parts separated by /, and perhaps a :tag")
	}
	return nil
}

// fileName turns a checked name into the name of a file: the two characters of
// the grammar that a file name cannot have, or should not, become ones that the
// grammar lacks.
func fileName(name string) string {
	return strings.NewReplacer("/", "+", ":", "@").Replace(name)
}

// blobName is the file name of a blob, "" for what is not a digest.
func blobName(digest string) string {
	if !digestRE.MatchString(digest) {
		return ""
	}
	return strings.Replace(digest, ":", "-", 1) + ".erofs"
}
