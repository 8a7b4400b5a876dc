package rest

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
)

//go:embed docs.html
var docsPage []byte

// docs serves one page that needs nothing from anywhere else: it reads
// /openapi.json and lets the reader try each route. Its policy allows its own
// script and this server, and nothing more.
func docs() http.Handler {
	sum := func(open, end string) string {
		_, rest, _ := bytes.Cut(docsPage, []byte(open))
		text, _, _ := bytes.Cut(rest, []byte(end))
		h := sha256.Sum256(text)
		return "'sha256-" + base64.StdEncoding.EncodeToString(h[:]) + "'"
	}
	policy := "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
		"script-src " + sum("<script>", "</script>") + "; style-src " + sum("<style>", "</style>")
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		_, _ = w.Write(docsPage) // the client may be gone
	})
}
