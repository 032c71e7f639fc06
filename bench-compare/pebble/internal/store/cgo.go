//go:build cgo

package store

// hasCgo says whether Pebble keeps memtables and cached blocks outside the heap of Go.
const hasCgo = true
