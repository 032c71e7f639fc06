package measure

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Part is the files of one purpose.
type Part struct {
	Files          uint64 `json:"files"`
	Bytes          uint64 `json:"bytes"`
	AllocatedBytes uint64 `json:"allocated_bytes"`
}

// Sizes of the folder of a store.
type Sizes struct {
	Tables Part `json:"tables"`
	Log    Part `json:"log"`
	Other  Part `json:"other"`
}

// Total returns the sum of all files.
func (s Sizes) Total() Part {
	return Part{
		Files:          s.Tables.Files + s.Log.Files + s.Other.Files,
		Bytes:          s.Tables.Bytes + s.Log.Bytes + s.Other.Bytes,
		AllocatedBytes: s.Tables.AllocatedBytes + s.Log.AllocatedBytes + s.Other.AllocatedBytes,
	}
}

// walk calls visit with each regular file below a folder. Files that vanish are left out.
func walk(folder string, visit func(path string, info fs.FileInfo) error) error {
	return filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			var info fs.FileInfo
			if info, err = entry.Info(); err == nil {
				err = visit(path, info)
			}
		}
		if errors.Is(err, fs.ErrNotExist) && path != folder {
			return nil
		}
		return err
	})
}

// SizesOf reads the sizes of all files of a store.
func SizesOf(folder string) (Sizes, error) {
	var sizes Sizes
	err := walk(folder, func(path string, info fs.FileInfo) error {
		part := &sizes.Other
		switch filepath.Ext(path) {
		case ".sst", ".blob":
			part = &sizes.Tables
		case ".log":
			part = &sizes.Log
		}
		part.Files++
		part.Bytes += uint64(info.Size())
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			part.AllocatedBytes += uint64(stat.Blocks) * 512
		}
		return nil
	})
	return sizes, err
}

// Drop writes all files to the device and drops them from the page cache.
func Drop(folder string) error {
	return walk(folder, func(path string, _ fs.FileInfo) error {
		return withFile(path, func(file *os.File) error {
			if err := file.Sync(); err != nil {
				return err
			}
			return unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
		})
	})
}

// WarmUp reads all files once.
func WarmUp(folder string) error {
	return walk(folder, func(path string, _ fs.FileInfo) error {
		return withFile(path, func(file *os.File) error {
			_, err := io.Copy(io.Discard, file)
			return err
		})
	})
}

// CachedPart returns the part of the files that is in the page cache; nil if it is not known.
func CachedPart(folder string) *float64 {
	var cached, total uint64
	err := walk(folder, func(path string, info fs.FileInfo) error {
		return withFile(path, func(file *os.File) error {
			bytes, err := cachedBytes(file, info.Size())
			cached += bytes
			total += uint64(info.Size())
			return err
		})
	})
	if err != nil {
		return nil
	}
	return Ratio(float64(cached), float64(total))
}

// cachedBytes counts the bytes of a file that are in the page cache. The map is never read, so it
// does not matter if the file is truncated meanwhile.
func cachedBytes(file *os.File, size int64) (uint64, error) {
	if size == 0 {
		return 0, nil
	}
	mapped, err := unix.Mmap(int(file.Fd()), 0, int(size), unix.PROT_NONE, unix.MAP_SHARED)
	if err != nil {
		return 0, fmt.Errorf("map %s: %w", file.Name(), err)
	}
	defer unix.Munmap(mapped)
	page := os.Getpagesize()
	pages := make([]byte, (int(size)+page-1)/page)
	_, _, failed := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(mapped))),
		uintptr(size), uintptr(unsafe.Pointer(unsafe.SliceData(pages))))
	if failed != 0 {
		return 0, fmt.Errorf("mincore of %s: %w", file.Name(), failed)
	}
	var count uint64
	for _, state := range pages {
		count += uint64(state & 1)
	}
	return min(count*uint64(page), uint64(size)), nil
}

func withFile(path string, use func(*os.File) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return use(file)
}
